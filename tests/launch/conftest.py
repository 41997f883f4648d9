"""An environment with the installed wheel for a whole session, and a folder for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.environments import borrowing, installed
from tests.launch.place import Place

TORCH_AND_RAY = (["torch==2.13.0"], ["ray[default]", "accelerate"])  # torch first and alone: what comes after would bring other builds


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin folder of a small environment that has the wheel and no start-up file of the developer's."""
    return borrowing(tmp_path_factory.mktemp("environment") / "venv")


@pytest.fixture
def place(commands: Path, tmp_path: Path) -> Place:
    """A folder of its own in that environment."""
    return Place(commands, tmp_path)


@pytest.fixture(scope="session")
def torch_commands() -> Path:
    """bin folder of an environment of its own with torch, accelerate, Ray and the wheel (``.venvs/launch``)."""
    return installed("launch", *TORCH_AND_RAY)


@pytest.fixture
def torch_place(torch_commands: Path, tmp_path: Path) -> Place:
    """A folder of its own in that environment."""
    return Place(torch_commands, tmp_path)
