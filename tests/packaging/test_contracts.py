"""The import contracts hold, and they notice the imports that they are there for."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Which module gets which import, and the contract that has to say so.
FORBIDDEN = {
    "what a run is knows no analyzer": ("run", "import rlaudit.analyzers.results", "analyzers/ is imported by"),
    "what a run is knows no capture": ("schema", "import rlaudit.capture.config", "capture/ is imported by"),
    "capture knows no analyzer": ("capture/hooks", "from rlaudit.analyzers import results", "analyzers/ is imported by"),
    "capture brings no duckdb along": ("capture/hooks", "def f():\n    import duckdb", "Capture brings no analysis library"),
    "an analyzer renders nothing": ("analyzers/results", "import rlaudit.report", "report/ is imported by"),
    "a report computes nothing": ("report/as_json", "import rlaudit.analyzers.audit", "analyzers/ is imported by"),
    "nobody calls the command line": ("report/as_json", "import rlaudit.cli.main", "cli/ is imported by nobody"),
}


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter with the project's contracts on the package ``folder``/rlaudit."""
    pytest.importorskip("importlinter", reason="import-linter is one of the tools that make test installs")
    lint = Path(sys.executable).with_name("lint-imports")
    command = [lint, "--config", ROOT / "pyproject.toml", "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the sources laid out under their import names, to be linted; returns the folder above ``rlaudit``."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "audit", tmp_path / "rlaudit", ignore=ignored)
    for name in ("capture", "analyzers", "replay", "report", "cli"):
        shutil.copytree(ROOT / name, tmp_path / "rlaudit" / name, ignore=ignored)
    return tmp_path


def test_the_contracts_hold(package: Path) -> None:
    done = check(package)
    assert done.returncode == 0, done.stdout
    assert ", 0 broken." in done.stdout


@pytest.mark.parametrize(("module", "statement", "contract"), FORBIDDEN.values(), ids=list(FORBIDDEN))
def test_a_forbidden_import_breaks_its_contract(package: Path, module: str, statement: str, contract: str) -> None:
    with (package / "rlaudit" / f"{module}.py").open("a", encoding="utf-8") as file:
        file.write(f"\n{statement}\n")
    done = check(package)
    assert done.returncode == 1, done.stdout
    broken = done.stdout.partition("Broken contracts")[2].splitlines()
    assert any(line.startswith(contract) for line in broken), done.stdout
