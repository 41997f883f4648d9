"""Builds of the project from a copy of its files, so that nothing is left in the working tree."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a clone holds: tracked files, and new ones that git doesn't ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip(f"the copy is made from git's list of files, and git says: {listed.stderr.strip()}")
    copy = tmp_path_factory.mktemp("project")
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


def build(project: Path, kind: str, into: Path) -> Path:
    """Build a ``wheel`` or ``sdist`` with the setuptools of this environment; returns the file."""
    code = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(into)], cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return into / done.stdout.splitlines()[-1]


@pytest.fixture(scope="session")
def wheel(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this working tree."""
    return build(project, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def sdist(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of this working tree."""
    return build(project, "sdist", tmp_path_factory.mktemp("sdist"))
