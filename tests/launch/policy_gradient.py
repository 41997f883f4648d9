"""A hand-written training loop on torch: a small GRU learns by REINFORCE to prefer even tokens; records what it samples and recomputes.

    python policy_gradient.py STEPS PROGRESS

After each step one line goes to PROGRESS with one system call: the step, the time (monotonic, seconds), and a digest of what was recorded.
Under torchrun or accelerate every rank trains on its own sequences; gradients are added up with gloo.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time

import torch
from torch import Tensor, nn

import rlaudit

GROUPS, GROUP, LENGTH, VOCABULARY = 2, 4, 24, 32


class Policy(nn.Module):
    """Next-token logits of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.recurrent = nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """(n, length) token ids to (n, length, vocabulary) log-probabilities of the token that follows."""
        return self.head(self.recurrent(self.embedding(tokens))[0]).log_softmax(-1)


@torch.no_grad()
def sample(policy: Policy, prompts: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Responses (n, LENGTH) and the log-probability of every sampled token."""
    tokens, logprobs = prompts, []
    for _ in range(LENGTH):
        following = policy(tokens)[:, -1]
        chosen = torch.multinomial(following.exp(), 1, generator=generator)
        logprobs.append(following.gather(1, chosen))
        tokens = torch.cat([tokens, chosen], 1)
    return tokens[:, prompts.shape[1] :], torch.cat(logprobs, 1)


def digest(tokens: Tensor, rollout: Tensor, trainer: Tensor) -> str:
    """Of the numbers as they are recorded."""
    return hashlib.sha256(b"".join(x.detach().contiguous().numpy().tobytes() for x in (tokens.int(), rollout, trainer))).hexdigest()


def main() -> None:
    """Train."""
    steps, progress = int(sys.argv[1]), os.open(sys.argv[2], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1 + rank)
    if world > 1:
        torch.distributed.init_process_group("gloo")
    policy = Policy()
    optimizer = torch.optim.SGD(policy.parameters(), 0.5)
    for step in range(steps):
        prompts = torch.randint(VOCABULARY, (GROUPS, 3), generator=generator).repeat_interleave(GROUP, 0)
        responses, rollout = sample(policy, prompts, generator)
        rewards = (responses % 2 == 0).float().mean(1)
        advantages = rewards - rewards.view(GROUPS, GROUP).mean(1).repeat_interleave(GROUP)
        names = [f"{rank}-{step}-{n}" for n in range(len(prompts))]
        rlaudit.record_rollout(
            step=step,
            sequence_ids=names,
            prompt_tokens=list(prompts),
            response_tokens=list(responses),
            logprobs=list(rollout),
            rewards=rewards,
            advantages=advantages,
            group_ids=[f"{rank}-{step}-{n // GROUP}" for n in range(len(prompts))],
            policy_updates=step,
        )
        everything = torch.cat([prompts, responses], 1)
        trainer = policy(everything)[:, prompts.shape[1] - 1 : -1].gather(2, responses[..., None])[..., 0]
        rlaudit.record_scores(step=step, sequence_ids=names, source="trainer", logprobs=list(trainer.detach()), policy_updates=step)
        optimizer.zero_grad()
        (-(advantages[:, None] * trainer).mean()).backward()
        if world > 1:
            for parameter in policy.parameters():
                torch.distributed.all_reduce(parameter.grad)
        optimizer.step()
        rlaudit.step(step)
        os.write(progress, f"{step} {time.monotonic()} {digest(responses, rollout, trainer)}\n".encode())
    weights = b"".join(p.detach().numpy().tobytes() for p in policy.parameters())
    os.write(1, f"rank {rank}: weights {hashlib.sha256(weights).hexdigest()}\n".encode())  # at once: ranks share the pipe
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
