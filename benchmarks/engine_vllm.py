"""CPU time of a vLLM engine with and without capture, alternately: the same prompts, log-probabilities and routed experts in both.

    OMP_NUM_THREADS=1 python benchmarks/engine_vllm.py MODEL [--prompts 64] [--tokens 128] [--rounds 3]

Needs an environment with vLLM and rlaudit, on a CPU or a GPU. Counted are the CPU seconds of the generating calls alone, after one to warm
up; the writer's thread is among them where the engine runs in this process, as it does here. The least of the rounds counts, since other
work on the machine only ever adds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def generate(model: str, prompts: int, tokens: int) -> float:
    """CPU seconds that generating takes in this process."""
    from vllm import LLM, SamplingParams

    draw = random.Random(0)
    given = [{"prompt_token_ids": [draw.randrange(3, 700) for _ in range(32)]} for _ in range(prompts)]
    llm = LLM(
        model=model,
        enforce_eager=True,
        max_model_len=tokens + 64,
        max_num_seqs=64,
        block_size=32,
        enable_return_routed_experts="moe" in Path(model).name.lower(),
    )
    llm.generate(given[:4], SamplingParams(max_tokens=8, logprobs=0), use_tqdm=False)
    begun = time.process_time()
    llm.generate(given, SamplingParams(max_tokens=tokens, logprobs=0, ignore_eos=True), use_tqdm=False)
    time.sleep(2)  # what was queued is written in this time; sleeping takes no CPU time
    return time.process_time() - begun


def measured(options: argparse.Namespace, folder: Path | None) -> float:
    """CPU seconds in a process of its own, under ``rlaudit capture`` where there is a folder."""
    capture = [] if folder is None else [str(Path(sys.executable).parent / "rlaudit"), "capture", "--out", str(folder), "--"]
    own = [sys.executable, __file__, options.model, "--prompts", str(options.prompts), "--tokens", str(options.tokens), "--child"]
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    done = subprocess.run([*capture, *own], env=environment, capture_output=True, text=True, check=True)
    return float(next(line for line in done.stdout.splitlines() if line.startswith("seconds ")).split()[1])


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print("seconds", generate(options.model, options.prompts, options.tokens))
        return
    without, within = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            without.append(measured(options, None))
            within.append(measured(options, Path(folder) / str(number)))
    tokens = options.prompts * options.tokens
    print(json.dumps({"tokens": tokens, "without": without, "captured": within, "ratio": min(within) / min(without)}))


if __name__ == "__main__":
    main()
