"""Trains a few GRPO steps on the stub engine and pickles what was recorded; a process of its own, as TRL looks for vLLM when imported."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from tests.adapters.tiny_trl import save_tiny_model, train


def main(folder: Path) -> None:
    model = save_tiny_model(folder / "model")
    run = train(
        model,
        folder / "output",
        max_steps=3,
        use_vllm=True,
        vllm_mode="colocate",
        temperature=0.8,
        steps_per_generation=4,
        gradient_accumulation_steps=2,
        max_completion_length=10,
    )
    (folder / "run.pickle").write_bytes(pickle.dumps((run.sink.__dict__, run.log, run.hooks.failures)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
