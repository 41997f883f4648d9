"""What is in the wheel and in the source distribution: everything that runs, and no name that could hide a user's module."""

import tarfile
import zipfile
from pathlib import Path

import pytest

FOLDERS = {"audit": "rlaudit", **{name: f"rlaudit/{name}" for name in ("capture", "analyzers", "replay", "report", "cli")}}


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    """Paths inside the wheel."""
    return set(zipfile.ZipFile(wheel).namelist())


def test_every_source_file_is_in_the_wheel(project: Path, names: set[str]) -> None:
    sources = {
        f"{package}/{file.relative_to(project / folder).as_posix()}"
        for folder, package in FOLDERS.items()
        for pattern in ("*.py", "*.sql", "py.typed")
        for file in (project / folder).rglob(pattern)
    }
    assert len(sources) > 50
    assert sources <= names, f"missing: {sorted(sources - names)}; is a new package listed in pyproject.toml?"


def test_the_wheel_adds_only_rlaudit_and_its_start_up_file_to_an_environment(names: set[str]) -> None:
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"rlaudit", "rlaudit_bootstrap.pth"}


def test_the_start_up_file_is_one_line_that_looks_at_the_variable_and_the_kill_switch(wheel: Path) -> None:
    text = zipfile.ZipFile(wheel).read("rlaudit_bootstrap.pth").decode()
    # site executes a line of a .pth file where it starts with "import" and takes it for a path otherwise.
    assert text == (
        "import os; os.environ.get('RLAUDIT_CAPTURE') and os.environ.get('RLAUDIT_DISABLE') != '1' and "
        "__import__('rlaudit.capture.bootstrap')\n"
    )


def test_the_wheel_is_typed_and_carries_its_sql(names: set[str]) -> None:
    assert "rlaudit/py.typed" in names
    assert any(name.startswith("rlaudit/sql/") and name.endswith(".sql") for name in names)


def test_the_core_needs_no_machine_learning_framework(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    metadata = archive.read(next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))).decode()
    required = [line.removeprefix("Requires-Dist: ") for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    core = {line.split(">")[0].split(";")[0].strip() for line in required if "extra ==" not in line}
    assert {"pyarrow", "duckdb", "typer"} <= core
    assert not core & {"torch", "transformers", "trl", "vllm", "sglang", "ray", "accelerate", "datasets"}


def test_the_source_distribution_holds_what_building_needs(project: Path, sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        inside = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    needed = {"pyproject.toml", "setup.py", "LICENSE", "README.md", "audit/py.typed", "capture/site/sitecustomize.py"}
    needed |= {file.relative_to(project).as_posix() for folder in FOLDERS for file in (project / folder).rglob("*.py")}
    assert needed <= inside, f"missing: {sorted(needed - inside)}"
