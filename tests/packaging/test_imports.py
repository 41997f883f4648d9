"""What importing rlaudit costs a training process: the standard library and nothing heavy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "numpy", "pyarrow", "duckdb", "scipy", "numba", "torch", "transformers", "trl", "pandas", "typer", "click", "rich", "fsspec",
    "packaging", "asyncio", "multiprocessing", "importlib.metadata", "email", "urllib.request", "http.client", "ssl",
}  # fmt: skip


def loaded_by(statement: str, cwd: Path) -> set[str]:
    """Modules that ``statement`` loads in a fresh interpreter on top of what the interpreter itself loads."""
    code = f"import json, sys; before = set(sys.modules); {statement}; print(json.dumps(sorted(set(sys.modules) - before)))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RLAUDIT")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=cwd, env=environment)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("statement", ["import rlaudit", "import rlaudit.capture.bootstrap", "import rlaudit, rlaudit.capture.bootstrap"])
def test_what_a_training_process_imports_at_its_start_is_light(statement: str, tmp_path: Path) -> None:
    loaded = loaded_by(statement, tmp_path)
    assert "rlaudit" in loaded
    assert not loaded & HEAVY


def test_the_public_reader_is_there_when_asked_for(tmp_path: Path) -> None:
    loaded = loaded_by("import rlaudit; rlaudit.Run", tmp_path)
    assert {"rlaudit.run", "pyarrow"} <= loaded
    assert not loaded & {"torch", "scipy", "numba"}


def test_no_module_of_the_core_needs_a_machine_learning_or_rendering_library(tmp_path: Path) -> None:
    modules = [f"rlaudit.{file.stem}" for file in (Path(__file__).parents[2] / "audit").glob("*.py") if file.stem != "__init__"]
    assert not loaded_by(f"import {', '.join(modules)}", tmp_path) & {"torch", "transformers", "numba", "typer", "rich"}


def test_help_needs_no_analysis_library(tmp_path: Path) -> None:
    loaded = loaded_by("import rlaudit.cli.main", tmp_path)
    assert not loaded & {"numpy", "pyarrow", "duckdb", "scipy", "numba", "torch", "pandas", "rich"}
