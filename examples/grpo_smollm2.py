"""Real GRPO (TRL) on a real pretrained model, SmolLM2-135M-Instruct, on a CPU in a few minutes. A plain training script.

python examples/grpo_smollm2.py                   # dense
python examples/grpo_smollm2.py --experts 4       # the mixture of experts that upcycle_moe.py makes from it
"""

from __future__ import annotations

import argparse
import math
import random
import re
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from progress import hush, show_steps
from smollm2 import load_smollm2
from trl import GRPOConfig, GRPOTrainer
from upcycle_moe import upcycle


def questions(count: int, seed: int) -> Dataset:
    """``count`` small sums as conversations, each with its ``answer``; the wording, and so the prompt's length, varies."""
    generator = random.Random(seed)
    wordings = (
        "What is {a} + {b}?",
        "What is {a} plus {b}? Answer with the number.",
        "I have {a} apples and you give me {b} more. How many apples do I have now? Be brief.",
    )
    rows: dict[str, list[Any]] = {"prompt": [], "answer": []}
    for number in range(count):
        a, b = generator.randint(1, 9), generator.randint(1, 9)
        rows["prompt"].append([{"role": "user", "content": wordings[number % len(wordings)].format(a=a, b=b)}])
        rows["answer"].append(a + b)
    return Dataset.from_dict(rows)


def right_and_brief(completions: list[list[dict[str, str]]], answer: list[int], **_: Any) -> list[float]:
    """Reward: 1 where the last number named is the right one, less 0.01 for every word."""
    rewards = []
    for (message,), expected in zip(completions, answer, strict=True):
        numbers = re.findall(r"\d+", message["content"])
        right = bool(numbers) and int(numbers[-1]) == expected
        rewards.append(float(right) - 0.01 * len(message["content"].split()))
    return rewards


def settings(folder: str, steps: int, seed: int) -> GRPOConfig:
    """Eight answers (2 questions x 4) are sampled for every two optimizer steps of four answers each; see grpo_tiny_moe.py."""
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,  # no autocast: the forward pass computes in the dtype of the weights
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_generations=4,
        max_completion_length=24,
        gradient_checkpointing=False,  # there is memory enough, and a quarter less to compute
        temperature=1.0,
        learning_rate=1e-6,
        beta=0.0,
        max_steps=steps,
        seed=seed,
        shuffle_dataset=False,
        logging_steps=1,
        disable_tqdm=True,
        report_to="none",
        save_strategy="no",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="GRPO on SmolLM2-135M or on a mixture of experts made from it, CPU only.")
    parser.add_argument("--steps", type=int, default=4, help="optimizer steps (default: 4)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="dtype of the weights (default: bfloat16)")
    parser.add_argument("--experts", type=int, default=0, help="copy every MLP into this many experts; 0 trains the dense model (default)")
    parser.add_argument("--output", type=Path, help="keep the trained model in OUTPUT/trained; default: keep nothing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: 1; two are faster where both cores are idle)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    hush()
    model, tokenizer = load_smollm2()
    if arguments.experts:
        model = upcycle(model, experts=arguments.experts, seed=arguments.seed)
    model = model.to(getattr(torch, arguments.dtype))
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.output or Path(scratch)
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=right_and_brief,
            args=settings(str(folder), arguments.steps, arguments.seed),
            # Two questions for every two steps; fewer than one generation takes would leave TRL without data.
            train_dataset=questions(2 * math.ceil(arguments.steps / 2), arguments.seed),
            processing_class=tokenizer,
        )
        show_steps(trainer)
        kind = f"{arguments.experts} experts a layer" if arguments.experts else "dense"
        print(f"GRPO, SmolLM2 ({kind}) of {model.num_parameters():,} {arguments.dtype} parameters, {arguments.steps} steps", flush=True)
        trainer.train()
        if arguments.output:
            trainer.save_model(str(folder / "trained"))


if __name__ == "__main__":
    main()
