"""The task: prompts, a reward that can be checked, and advantages within a group."""

from __future__ import annotations

import statistics

QUESTIONS = ("What is 2 + 2?", "Which words come next?", "Name the lazy animal.", "What is 17 - 9?")


def reward(tokens: list[int]) -> float:
    """Share of the sampled tokens whose id is even: trivial to verify and quick to learn."""
    return sum(token % 2 == 0 for token in tokens) / len(tokens)


def advantages(rewards: list[float], group: int) -> list[float]:
    """Rewards less their group's mean, over the group's standard deviation; groups lie one behind the other."""
    values: list[float] = []
    for start in range(0, len(rewards), group):
        members = rewards[start : start + group]
        mean, deviation = statistics.fmean(members), statistics.pstdev(members)
        values += [(value - mean) / (deviation + 1e-6) for value in members]
    return values
