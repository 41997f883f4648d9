"""Environments of their own for tests, with the wheel of the working tree: real ones under ``.venvs``, or small ones that borrow packages.

Nothing here uses the developer's installation of rlaudit: what is tested is what a user installs.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("audit", "capture", "analyzers", "replay", "report", "cli", "pyproject.toml", "setup.py", "README.md", "LICENSE")


def installed(name: str, *groups: Sequence[str], finish: Callable[[Path], None] | None = None) -> Path:
    """bin folder of the environment ``.venvs/<name>``, with rlaudit as the working tree has it now.

    groups: requirements, installed group after group; made anew where they differ from what is there. finish: what is left to do
    to the environment when they are. Safe to call from several processes at once.
    """
    environment = ROOT / ".venvs" / name
    python, done = environment / "bin" / "python", environment / "installed"
    wanted = "\n".join(" ".join(group) for group in groups)
    environment.parent.mkdir(exist_ok=True)
    with _locked(environment.with_name(f".{name}.lock")):
        if not done.exists() or done.read_text() != wanted:
            shutil.rmtree(environment, ignore_errors=True)
            run([sys.executable, "-m", "venv", environment])
            for group in groups:
                pip(python, *group)
            if finish is not None:
                finish(environment)
            done.write_text(wanted)
        _install_wheel(environment)
    return python.parent


def borrowing(folder: Path) -> Path:
    """bin folder of a new environment at ``folder``: the wheel is its own, everything else is this interpreter's. Takes seconds.

    A path file lends the other packages. Start-up and path files among them are not read there, so an editable installation of
    rlaudit is not seen.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    own = site_packages(folder)
    lent = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (own / "zz_lent.pth").write_text("".join(f"{path}\n" for path in sorted(lent)), encoding="utf-8")
    run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile", "--no-deps", "--no-index",
         "--disable-pip-version-check", "--ignore-installed", wheel()])  # fmt: skip
    return python.parent


def site_packages(environment: Path) -> Path:
    """Where an environment keeps its packages."""
    return next((environment / "lib").glob("python*/site-packages"))


@functools.cache
def wheel() -> Path:
    """The wheel of the working tree, built once a test session."""
    folder = Path(tempfile.mkdtemp(prefix="rlaudit-wheel-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    project = folder / "project"
    project.mkdir()
    for name in SOURCES:  # setuptools builds where the sources are; a copy keeps the working tree clean
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, project / name)
    code = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    return folder / run([sys.executable, "-c", code, folder], project).splitlines()[-1]


def pip(python: Path, *requirements: str | Path) -> None:
    """Install into an environment. Not compiled: that would take longer than the installation."""
    run([python, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", *requirements])


def plain_environment(**variables: str) -> dict[str, str]:
    """The environment variables of a user's shell: none of rlaudit's and Python's own from this test session."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RLAUDIT", "PYTHON", "COVERAGE", "PYTEST"))}
    return {**kept, **variables}


def run(command: Sequence[str | Path], cwd: Path = ROOT, **variables: str) -> str:
    """Run a command and return its output; fails with its end where the command fails."""
    done = subprocess.run(command, env=plain_environment(**variables), cwd=cwd, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def _install_wheel(environment: Path) -> None:
    """Install the working tree's wheel where the environment has another one."""
    noted, found = environment / "wheel", _contents(wheel())
    if noted.exists() and noted.read_text() == found:
        return
    python = environment / "bin" / "python"
    pip(python, wheel())  # what it depends on
    pip(python, "--no-deps", "--force-reinstall", wheel())
    noted.write_text(found)


def _contents(archive: Path) -> str:
    """Digest of a wheel's files; the archive itself carries times of its making."""
    with zipfile.ZipFile(archive) as file:
        record = next(name for name in file.namelist() if name.endswith(".dist-info/RECORD"))
        return hashlib.sha256(file.read(record)).hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
