"""Shared runs of the adapter tests; without torch, transformers and TRL only the declarations are tested."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
NEED_FRAMEWORKS = [f"{HERE}/test_{about}*.py" for about in ("routing", "transformers", "trl")]
collect_ignore_glob = [] if all(find_spec(name) for name in ("torch", "transformers", "trl")) else NEED_FRAMEWORKS


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved tiny Qwen3-MoE whose responses often end early: many of its tokens are end tokens."""
    from transformers import GenerationConfig

    from .tiny_trl import save_tiny_model

    folder = save_tiny_model(tmp_path_factory.mktemp("model"))
    GenerationConfig(eos_token_id=[2, *range(60, 90)], pad_token_id=0).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def plain_grpo(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """GRPO as TRL configures it by default, captured and not captured."""
    from .tiny_trl import train

    return tuple(train(tiny_model_folder, tmp_path_factory.mktemp("output"), capture=capture) for capture in (True, False))  # type: ignore[return-value]
