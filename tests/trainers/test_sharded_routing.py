"""Routing under FSDP2 and DDP: each rank sees its own samples' experts, and training is bit for bit what it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Any]:
    folder = tmp_path_factory.mktemp("sharded")
    script = Path(__file__).with_name("sharded_routing.py")
    done = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {(kind, rank): torch.load(folder / f"{rank}-{kind}.pt") for kind in ("fsdp2", "ddp") for rank in (0, 1)}


@pytest.mark.parametrize("kind", ["fsdp2", "ddp"])
def test_each_rank_sees_its_own_samples_experts_as_the_unsharded_model_chooses_them(found: dict[tuple[str, int], Any], kind: str) -> None:
    for rank in (0, 1):
        experts, _, layers, num_experts = found[kind, rank]["seen"][0]
        expected, _, expected_layers, _ = found[kind, rank]["expected"]
        assert experts.shape == (3, 10, 2, 2)
        assert (layers, num_experts) == (expected_layers, 8) == ((0, 2), 8)
        assert torch.equal(experts, expected)
    assert not torch.equal(found[kind, 0]["seen"][0][0], found[kind, 1]["seen"][0][0])


@pytest.mark.parametrize("kind", ["fsdp2", "ddp"])
def test_weights_trained_with_and_without_capture_are_bit_identical(found: dict[tuple[str, int], Any], kind: str) -> None:
    for rank in (0, 1):
        captured, plain = found[kind, rank]["weights"]
        assert len(captured) == len(plain) > 20
        assert all(torch.equal(a, b) for a, b in zip(captured, plain, strict=True))
