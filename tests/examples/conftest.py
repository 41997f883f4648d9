"""Lets these tests import the example scripts the way the scripts import each other."""

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def examples_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts examples/ on the import path, as ``python examples/x.py`` does, and keeps the model hub out of it."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def examples() -> Path:
    """The folder of the example scripts."""
    return EXAMPLES
