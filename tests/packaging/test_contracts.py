"""The import contracts name every module of the core, so that a new one can't slip past them."""

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest

tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11 to read pyproject.toml")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def contracts() -> dict[str, Any]:
    """The contracts of pyproject.toml by id."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {contract["id"]: contract for contract in settings["tool"]["importlinter"]["contracts"]}


@pytest.mark.parametrize("contract", ["core", "light-core"])
def test_every_module_of_the_core_is_under_the_contract(contracts: dict[str, Any], contract: str) -> None:
    modules = {f"rlaudit.{file.stem}" for file in (ROOT / "audit").glob("*.py") if file.stem != "__init__"}
    packages = {f"rlaudit.{file.parent.name}" for file in (ROOT / "audit").glob("*/__init__.py")}
    assert set(contracts[contract]["source_modules"]) == modules | packages


def test_every_folder_of_the_house_has_a_contract(contracts: dict[str, Any]) -> None:
    folders = {"core", "capture", "analyzers", "replay", "report"}  # cli may import all of them
    assert folders <= set(contracts)


def test_the_tests_run_against_an_installed_rlaudit() -> None:
    assert importlib.metadata.version("rlaudit")
