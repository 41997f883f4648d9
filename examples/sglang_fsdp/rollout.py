"""Sampling: questions to the engine, one or two turns each, tokens in and tokens out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from engine import Answer, Engine
from rewards import QUESTIONS, advantages, reward


@dataclass
class Turn:
    """One engine call. [start, end): the part of the response that it sampled."""

    request_id: str
    input: list[int]
    start: int
    end: int
    answer: Answer


@dataclass
class Sample:
    """One trajectory as it is trained on; lists are aligned with the response. experts: None where the engine saw other tokens."""

    sequence_id: str
    group_id: str
    prompt: list[int]
    response: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    experts: np.ndarray | None = None
    reward: float = 0.0
    advantage: float = 0.0

    def add_sampled(self, given: list[int], answer: Answer) -> None:
        """The engine's tokens, as they came."""
        start = len(self.response)
        self.response += answer.tokens
        self.logprobs += answer.logprobs
        self.sampled += [True] * len(answer.tokens)
        self.turns.append(Turn(answer.request_id, given, start, len(self.response), answer))
        # The last call's routing covers the history too, but only where the engine was given these very tokens.
        self.experts = answer.experts if given == (self.prompt + self.response)[: len(given)] else None

    def add_given(self, tokens: list[int]) -> None:
        """Tokens of the environment: part of the sequence, not of the policy."""
        self.response += tokens
        self.logprobs += [None] * len(tokens)
        self.sampled += [False] * len(tokens)


def sample_step(step: int, engine: Engine, tokenizer: Any, config: Any, options: Any) -> list[Sample]:
    """All trajectories of a step, group after group."""
    samples = []
    for number, question in enumerate(QUESTIONS):
        text = tokenizer.apply_chat_template([{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True)
        prompt = tokenizer.encode(text, add_special_tokens=False)
        samples += [Sample(f"{step}-{number}-{index}", f"{step}-{number}", list(prompt)) for index in range(options.group)]
    for turn in range(2 if options.two_turns else 1):
        if turn:
            for sample in samples:
                sample.add_given(tool_result(sample.response, tokenizer))
        inputs = [sample.prompt + sample.response for sample in samples]
        if turn and options.retokenise:  # a fault to try: text in between, as many harnesses have it
            inputs = [tokenizer.encode(tokenizer.decode(tokens), add_special_tokens=False) for tokens in inputs]
        answers = engine.generate(
            [f"{sample.sequence_id}-t{turn}" for sample in samples], inputs, config.num_hidden_layers, config.num_experts_per_tok,
            options.max_new_tokens, options.temperature,
        )  # fmt: skip
        for sample, given, answer in zip(samples, inputs, answers, strict=True):
            sample.add_sampled(given, answer)
    for sample in samples:
        sample.reward = reward([token for token, sampled in zip(sample.response, sample.sampled, strict=True) if sampled])
    for sample, advantage in zip(samples, advantages([sample.reward for sample in samples], options.group), strict=True):
        sample.advantage = advantage
    return samples


def tool_result(answer: list[int], tokenizer: Any) -> list[int]:
    """What the tool answers to any call: how many characters the answer had, as a turn of the chat template."""
    closing = "" if answer[-1] == tokenizer.eos_token_id else tokenizer.eos_token
    text = f"{closing}\n<|im_start|>tool\n{len(tokenizer.decode(answer))}<|im_end|>\n<|im_start|>assistant\n"
    return list(tokenizer.encode(text, add_special_tokens=False))
