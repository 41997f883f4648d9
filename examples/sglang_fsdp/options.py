"""The options, which driver and trainer share."""

from __future__ import annotations

import argparse


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """What was asked for; words: of sys.argv by default."""
    parser = argparse.ArgumentParser(description="GRPO of a tiny Qwen3-MoE: an SGLang server samples, FSDP2 ranks train.")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--group", type=int, default=4, help="samples of each prompt")
    parser.add_argument("--max-new-tokens", type=int, default=24, help="in each turn")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the trainer, and of the engine too")
    parser.add_argument("--engine-dtype", choices=("float32", "bfloat16"), help="where the engine's differs")
    parser.add_argument("--replay-routing", action="store_true", help="R3: train with the experts that the engine chose")
    parser.add_argument("--two-turns", action="store_true", help="a tool's answer and a second turn")
    faults = parser.add_argument_group("faults to try")
    faults.add_argument("--retokenise", action="store_true", help="decode and encode the history before the second turn")
    faults.add_argument("--no-sync", action="store_true", help="the engine never loads the weights that were sent")
    where = parser.add_argument_group("set by run.sh and driver.py")
    where.add_argument("--work", default="runs/sglang_fsdp-work", help="folder for model, checkpoints and the server's log")
    where.add_argument("--engine-python", help="Python of the environment with SGLang")
    where.add_argument("--model")
    where.add_argument("--url")
    options = parser.parse_args(words)
    options.engine_dtype = options.engine_dtype or options.dtype
    if options.retokenise and not options.two_turns:
        parser.error("--retokenise needs --two-turns")
    if options.retokenise and options.replay_routing:
        parser.error("--replay-routing needs the engine's routing of the same tokens, which --retokenise takes away")
    return options
