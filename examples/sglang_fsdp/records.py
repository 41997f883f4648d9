"""Everything that this loop tells rlaudit: where to copy from. Without ``rlaudit capture`` each call returns at once."""

from __future__ import annotations

from typing import Any

from rollout import Sample

import rlaudit

ENGINE = "sglang-0"


def rollout(step: int, samples: list[Sample], config: Any, options: Any, updates: int, syncs: int) -> None:
    """The samples of a step: tokens, the engine's log-probabilities and routing, the calls that made them, and how they belong together."""
    policy = {"policy_updates": updates, "policy_syncs": syncs}
    sampling = {"temperature": options.temperature, "logprob_mode": "tempered", "dtype": options.engine_dtype, "backend": "sglang"}
    ids = [sample.sequence_id for sample in samples]
    rlaudit.record_rollout(
        step=step, sequence_ids=ids, group_ids=[sample.group_id for sample in samples], prompt_tokens=[sample.prompt for sample in samples],
        response_tokens=[sample.response for sample in samples], logprobs=[sample.logprobs for sample in samples],
        sampled_mask=[sample.sampled for sample in samples], loss_mask=[sample.sampled for sample in samples],
        rewards=[sample.reward for sample in samples], advantages=[sample.advantage for sample in samples],
        finish_reasons=[sample.turns[-1].answer.finish_reason for sample in samples],
        policy_version=[sample.turns[-1].answer.weight_version for sample in samples], **policy, **sampling,
    )  # fmt: skip
    routed = [sample for sample in samples if sample.experts is not None]
    if routed:
        rlaudit.record_routing(
            step=step, sequence_ids=[sample.sequence_id for sample in routed], source="rollout",
            experts=[sample.experts for sample in routed], num_experts=config.num_experts, layer_ids=range(config.num_hidden_layers),
            policy_version=[sample.turns[-1].answer.weight_version for sample in routed], **policy,
        )  # fmt: skip
    turns = [(sample, number, turn) for sample in samples for number, turn in enumerate(sample.turns)]
    request_ids = [turn.request_id for _, _, turn in turns]
    rlaudit.record_request(
        request_ids=request_ids, input_tokens=[turn.input for _, _, turn in turns], engine_id=ENGINE, step=step,
        output_tokens=[turn.answer.tokens for _, _, turn in turns], logprobs=[turn.answer.logprobs for _, _, turn in turns],
        turns=[number for _, number, _ in turns], cached_tokens=[turn.answer.cached_tokens for _, _, turn in turns],
        finish_reasons=[turn.answer.finish_reason for _, _, turn in turns],
        policy_version=[turn.answer.weight_version for _, _, turn in turns], **policy, **sampling,
    )  # fmt: skip
    rlaudit.record_links(
        step=step, sequence_ids=[sample.sequence_id for sample, _, _ in turns], request_ids=request_ids,
        turns=[number for _, number, _ in turns], starts=[turn.start for _, _, turn in turns], ends=[turn.end for _, _, turn in turns],
    )  # fmt: skip


def scores(step: int, source: str, samples: list[Sample], logprobs: list[Any], window: Any, options: Any, updates: int, width: int) -> None:
    """One evaluation by the trainer: log-probabilities of its own samples, and the experts that ``window`` saw."""
    ids = [sample.sequence_id for sample in samples]
    rlaudit.record_scores(
        step=step, sequence_ids=ids, source=source, logprobs=logprobs, policy_updates=updates, policy_version=f"step-{updates}",
        forward="recompute" if source == "trainer" else "update", temperature=options.temperature, logprob_mode="tempered",
        dtype=options.dtype, weight_dtype=options.dtype, backend="transformers",
    )  # fmt: skip
    seen = window.forwarded(width)
    if seen is None:
        return
    lengths = [len(sample.prompt) + len(sample.response) for sample in samples]
    rlaudit.record_routing(
        step=step, sequence_ids=ids, source=source, num_experts=seen.num_experts, layer_ids=seen.layer_ids,
        experts=[experts[:length] for experts, length in zip(seen.experts, lengths, strict=True)],
        policy_updates=updates, policy_version=f"step-{updates}",
    )  # fmt: skip
