"""A synthetic trainer with the exact layouts of tensor parallel 2 x pipeline parallel 2 with sequence parallelism; no framework.

    python producer.py RANK FIRST_STEP LAST_STEP [KILL_STEP]

Each replica (4 ranks) trains on its own sequences. Pipeline stage p owns layers 2p and 2p+1; under sequence parallelism tensor rank t owns
the t-th half of the tokens. Log-probabilities exist on the last stage, on both tensor ranks alike: tensor rank 0 writes them.
Rank 0 of a replica also plays the rollout engine. With KILL_STEP, the rank kills itself in the middle of that step.
"""

import os
import signal
import sys

import numpy as np

import rlaudit

LAYERS, TOP_K, EXPERTS, SEQUENCES, GROUP = 4, 2, 8, 40, 4


def sequence(replica: int, step: int, number: int) -> tuple[str, list[int], list[int], np.ndarray]:
    """Name, prompt, response and routing (tokens, layers, top_k) of a sequence; the same wherever it is computed."""
    rng = np.random.default_rng((replica, step, number))
    prompt = [replica, step, number // GROUP, 7]
    response = rng.integers(0, 50, 6 + number % 5).tolist()
    first = rng.integers(0, EXPERTS, (len(prompt) + len(response), LAYERS, 1))
    return f"d{replica}-s{step}-{number}", prompt, response, (first + np.array([0, 3])) % EXPERTS


def main() -> None:
    rank, first_step, last_step = (int(a) for a in sys.argv[1:4])
    kill_step = int(sys.argv[4]) if len(sys.argv) > 4 else -1
    replica, stage, half = rank // 4, rank % 4 // 2, rank % 2
    layers = [2 * stage, 2 * stage + 1]
    for step in range(first_step, last_step + 1):
        found = [sequence(replica, step, number) for number in range(SEQUENCES)]
        names, prompts, responses, routing = (list(column) for column in zip(*found, strict=True))
        common = {"step": step, "sequence_ids": names, "prompt_tokens": prompts, "policy_updates": step}
        if stage == 0 and half == 0:
            rlaudit.record_rollout(**common, response_tokens=responses, logprobs=[[-1.0] * len(r) for r in responses])
            whole = [r[:-1] for r in routing]  # the last sampled token is never routed
            rlaudit.record_routing(**common, source="rollout", experts=whole, num_experts=EXPERTS, layer_ids=range(LAYERS))
        if step == kill_step:
            rlaudit.step(step)
            os.kill(os.getpid(), signal.SIGKILL)
        if stage == 1 and half == 0:
            rlaudit.record_scores(**common, source="trainer", logprobs=[[-1.25] * len(r) for r in responses])
        cuts = [(len(r) + 1) // 2 for r in routing]
        rlaudit.record_routing(
            **common,
            source="trainer",
            experts=[(r[:cut] if half == 0 else r[cut:])[:, layers] for r, cut in zip(routing, cuts, strict=True)],
            num_experts=EXPERTS,
            layer_ids=layers,
            first_position=[0 if half == 0 else cut for cut in cuts],
            parts=4,
        )
        rlaudit.step(step)


if __name__ == "__main__":
    main()
