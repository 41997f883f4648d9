"""A user's first minute: install into a fresh environment without any framework, then run from anywhere."""

import os
import subprocess
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration


def fresh_environment(folder: Path, distribution: Path) -> Path:
    """A new virtual environment with ``distribution`` installed by its own pip; returns its bin folder."""
    venv.create(folder, with_pip=True)
    bin_folder = folder / "bin"
    install = [bin_folder / "python", "-m", "pip", "install", "--quiet", "--no-compile", distribution]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return bin_folder


@pytest.fixture(scope="module")
def from_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin folder of an environment that holds the wheel."""
    return fresh_environment(tmp_path_factory.mktemp("wheel-venv") / "venv", wheel)


def run(bin_folder: Path, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of that environment as a user with that environment active would."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RLAUDIT", "PYTHON"))}
    environment["PATH"] = f"{bin_folder}{os.pathsep}{environment['PATH']}"
    return subprocess.run([bin_folder / command[0], *command[1:]], capture_output=True, text=True, check=False, cwd=cwd, env=environment)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["schema"], ["hooks"]])
def test_the_command_runs_from_any_folder(from_wheel: Path, tmp_path: Path, arguments: list[str]) -> None:
    done = run(from_wheel, "rlaudit", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_no_framework_comes_with_the_core(from_wheel: Path, tmp_path: Path) -> None:
    done = run(from_wheel, "python", "-m", "pip", "list", "--format=freeze", cwd=tmp_path)
    installed = {line.split("==")[0].lower() for line in done.stdout.splitlines()}
    assert "rlaudit" in installed
    assert not installed & {"torch", "transformers", "trl", "vllm", "sglang", "ray"}


def test_a_command_is_captured_through_the_start_up_file_where_pythonpath_is_ignored(from_wheel: Path, tmp_path: Path) -> None:
    loop = tmp_path / "loop.py"
    loop.write_text(
        "import rlaudit\n"
        "assert rlaudit.capturing()\n"
        "rlaudit.record_rollout(step=1, sequence_ids=['a'], prompt_tokens=[[5, 6]], response_tokens=[[7, 8]], logprobs=[[-0.5, -1.0]])\n"
        "rlaudit.record_scores(step=1, sequence_ids=['a'], source='trainer', logprobs=[[-0.5, -1.0]])\n"
        "rlaudit.step(1)\n"
    )
    # -E makes Python ignore PYTHONPATH, and with it the launcher's sitecustomize: only the wheel's .pth file is left.
    done = run(from_wheel, "rlaudit", "capture", "--out", "captured", "--", "python", "-E", str(loop), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    query = run(
        from_wheel,
        "rlaudit",
        "query",
        "captured",
        "select count(*) as n, max(abs(delta)) as worst from tokens",
        "--format",
        "csv",
        cwd=tmp_path,
    )
    assert query.stdout.splitlines() == ["n,worst", "2,0.0"], query.stderr


def test_the_source_distribution_installs_and_runs(sdist: Path, tmp_path: Path) -> None:
    bin_folder = fresh_environment(tmp_path / "venv", sdist)
    done = run(bin_folder, "rlaudit", "--version", cwd=tmp_path)
    assert done.stdout.startswith("rlaudit ")
    site_packages = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    assert (site_packages / "rlaudit_bootstrap.pth").is_file()
