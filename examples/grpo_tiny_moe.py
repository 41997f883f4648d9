"""Real GRPO (TRL) on a tiny random Qwen3-MoE, on a CPU in half a minute. A plain training script: it knows of no audit.

python examples/grpo_tiny_moe.py --steps 12 --dtype bfloat16
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import math
import tempfile
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import torch
from datasets import Dataset
from progress import hush, show_steps
from tiny_moe import make_model, make_tokenizer
from trl import GRPOConfig, GRPOTrainer

QUESTIONS = (
    "What is 2 + 2?",
    "Name the animal that jumps over the lazy dog.",
    "Why does a sum taken in another order end in another last digit? Say it in one sentence.",
    "Which words come next?",
    "A router picks two of eight experts for every token. How many experts does a token visit in four layers?",
    "Stop.",
)


def plain_words(completions: list[list[dict[str, str]]], **_: Any) -> list[float]:
    """Reward: the share of an answer's characters that are lower-case English letters or spaces, 0 to 1."""
    answers = [message["content"] for (message,) in completions]
    return [sum(character in ascii_lowercase + " " for character in answer) / max(len(answer), 1) for answer in answers]


def prompts(count: int) -> Dataset:
    """``count`` conversations of one question each, in a fixed order; their lengths differ, so batches are padded."""
    questions = itertools.islice(itertools.cycle(QUESTIONS), count)
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": question}] for question in questions]})


def settings(folder: str, steps: int, seed: int) -> GRPOConfig:
    """Sixteen answers (4 questions x 4) are sampled for every two optimizer steps of eight answers each.

    So the first step trains on what its own weights sampled, and the second on what the weights before it sampled;
    and since steps_per_generation exceeds gradient_accumulation_steps, the trainer computes the old policy's
    log-probabilities by themselves.
    """
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,  # no autocast: the forward pass computes in the dtype of the weights
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_generations=4,
        max_completion_length=48,
        temperature=1.0,
        learning_rate=2e-5,
        beta=0.0,
        max_steps=steps,
        seed=seed,
        shuffle_dataset=False,
        logging_steps=1,
        disable_tqdm=True,
        report_to="none",
        save_strategy="no",
    )


def fingerprint(model: torch.nn.Module) -> str:
    """SHA-256 over every weight's name and bits, shortened to 16 digits: equal for equal weights, bit by bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def train(folder: Path, *, steps: int, dtype: str, seed: int) -> GRPOTrainer:
    """Make the model in ``folder``/start and train it; the trainer is returned with the trained model."""
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed).to(getattr(torch, dtype))
    start = folder / "start"
    model.save_pretrained(start)
    tokenizer.save_pretrained(start)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=plain_words,
        args=settings(str(folder), steps, seed),
        # Four questions for every two steps; fewer than one generation takes would leave TRL without data.
        train_dataset=prompts(4 * math.ceil(steps / 2)),
        processing_class=tokenizer,
    )
    show_steps(trainer)
    print(f"GRPO, Qwen3-MoE of {model.num_parameters():,} {dtype} parameters, {steps} steps, seed {seed}", flush=True)
    trainer.train()
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description="GRPO on a tiny random Qwen3-MoE, CPU only.")
    parser.add_argument("--steps", type=int, default=12, help="optimizer steps (default: 12)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="dtype of the weights (default: float32)")
    parser.add_argument("--output", type=Path, help="keep the model in OUTPUT/start (untrained) and OUTPUT/trained; default: keep neither")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: 1; a model this small gets slower with more)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    hush()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.output or Path(scratch)
        trainer = train(folder, steps=arguments.steps, dtype=arguments.dtype, seed=arguments.seed)
        if arguments.output:
            trainer.save_model(str(folder / "trained"))
        print(f"trained weights: sha256 {fingerprint(trainer.model)}")


if __name__ == "__main__":
    main()
