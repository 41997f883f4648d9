"""From what was observed of a TRL batch to rows of a run. N rows of a batch, C padded response width."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from rlaudit import recording
from rlaudit.capture.engines.transformers_generate import SamplingParameters
from rlaudit.recording import Padded

from . import trl_settings as settings
from .trl_batch import (
    Evaluation,
    FinishedBatch,
    GenerationBatch,
    Link,
    Turn,
    finish_reason,
    link_turns,
    rollout_logprobs,
    routed_rows,
    row_lengths,
)

Say = Callable[[str, str, str], None]


def record_requests(trainer: Any, batch: GenerationBatch, turn: Turn, logprobs: Any, syncs: int | None) -> None:
    """One ``requests`` row for each row of an engine call. ``logprobs``: what the engine returned to TRL; None where nothing."""
    updates = settings.policy_updates(trainer)
    given: SamplingParameters = turn.sampled.parameters if turn.sampled is not None else settings.sampling(trainer)
    ends, limit = settings.eos_ids(trainer), getattr(trainer, "max_completion_length", None)
    recording.record_request(
        request_ids=turn.request_ids,
        input_tokens=turn.inputs,
        output_tokens=turn.outputs,
        # vLLM's NaN reaches TRL as None, which TRL turns back into NaN
        logprobs=None if logprobs is None else [[float("nan") if value is None else value for value in row] for row in logprobs],
        logprob_mode=None if logprobs is None else settings.engine_logprob_mode(trainer),
        engine_id=f"{settings.engine_name(trainer)}-r{batch.rank}",
        phase=batch.phase,
        step=batch.step,
        turns=turn.number,
        policy_version=str(updates),
        policy_updates=updates,
        policy_syncs=syncs,
        finish_reasons=[finish_reason(tokens, ends, limit) for tokens in turn.outputs],
        started=turn.started,
        finished=time.time(),
        **given._asdict(),
    )


def record_batch(
    trainer: Any, batch: GenerationBatch, output: dict[str, Any], syncs: int | None, say: Say, forwards: Iterator[int]
) -> FinishedBatch:
    """Record a scored batch from TRL's ``output`` dictionary: sequences, links, rollout, trainer and reference scores, routing."""
    completion_mask = output["completion_mask"].detach().cpu().numpy()
    count = completion_mask.shape[0]
    lengths = row_lengths(completion_mask, batch.completions)
    finished = FinishedBatch(
        batch.step,
        batch.phase,
        batch.rank,
        [int(length) for length in output["prompt_mask"].detach().cpu().numpy().sum(axis=1)],
        lengths,
        [int(total) for total in (completion_mask != 0).sum(axis=1)],
    )
    ids = batch.sequence_ids(range(count))
    links = link_turns(batch) if len(batch.completions) == count else []
    _record_sequences(trainer, batch, output, lengths, links, syncs, say)
    _record_links(batch, ids, links)
    for evaluation in batch.evaluations:
        _record_evaluation(trainer, batch, evaluation, finished, completion_mask, forwards, say)
    _record_rollout_routing(trainer, batch, ids, links, syncs)
    return finished


def _record_sequences(
    trainer: Any, batch: GenerationBatch, output: dict[str, Any], lengths: list[int], links: list[Link], syncs: int | None, say: Say
) -> None:
    count, width = output["completion_ids"].shape
    tool_mask = _padded_mask(batch.tool_mask, count, width)
    logprobs, engine = _sampling_logprobs(trainer, batch, output, lengths, links, tool_mask, say)
    updates = settings.policy_updates(trainer)
    taps = [turn.sampled.parameters for turn in batch.turns if turn.sampled is not None]
    given = taps[0] if taps else settings.sampling(trainer)
    advantages = output["advantages"]
    ends, limit = settings.eos_ids(trainer), getattr(trainer, "max_completion_length", None)
    loss_mask = output["completion_mask"] * output["tool_mask"] if output.get("tool_mask") is not None else output["completion_mask"]
    recording.record_rollout(
        step=batch.step,
        sequence_ids=batch.sequence_ids(range(count)),
        prompt_tokens=Padded(output["prompt_ids"], mask=output["prompt_mask"]),
        response_tokens=Padded(output["completion_ids"], lengths=lengths),
        group_ids=batch.group_ids(count),
        phase=batch.phase,
        sampled_mask=None if tool_mask is None else Padded(tool_mask, lengths=lengths),
        loss_mask=Padded(loss_mask, lengths=lengths),
        rewards=batch.rewards,
        advantages=advantages.detach().cpu().tolist() if advantages.dim() == 1 else None,
        finish_reasons=[finish_reason(tokens, ends, limit) for tokens in batch.completions] if len(batch.completions) == count else None,
        policy_version=str(updates),
        policy_updates=updates,
        policy_syncs=syncs,
        logprobs=logprobs,
        forward="decode",
        **engine,
        **given._asdict(),
    )


def _padded_mask(rows: list[list[int]] | None, count: int, width: int) -> Any:
    """Rows of a mask over responses as (N, C), padding 0; None where there is no mask or it is not this batch's."""
    if rows is None or len(rows) != count:
        return None
    padded = np.zeros((count, width), np.uint8)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row[:width]
    return padded


def _sampling_logprobs(
    trainer: Any, batch: GenerationBatch, output: dict[str, Any], lengths: list[int], links: list[Link], tool_mask: Any, say: Say
) -> tuple[Padded | None, dict[str, Any]]:
    """Sampling log-probabilities and what they are: TRL's own where it has them, otherwise what the taps on generate saw."""
    name = settings.engine_name(trainer)
    given = output.get("sampling_per_token_logps")
    if given is not None:
        dtype, weights = settings.engine_dtypes(trainer)
        engine = {"backend": name, "logprob_mode": settings.engine_logprob_mode(trainer), "dtype": dtype, "weight_dtype": weights}
        return Padded(given, lengths=lengths, valid=tool_mask), engine
    engine = {"backend": name, "logprob_mode": "processed"}
    if name == "transformers.generate":
        engine |= {"dtype": settings.compute_dtype(trainer), "weight_dtype": settings.weight_dtype(trainer.model)}
    if not any(turn.sampled is not None for turn in batch.turns) or len(batch.completions) != len(lengths):
        return None, engine
    values, there, mismatches = rollout_logprobs(batch, links, output["completion_ids"].shape[1])
    if mismatches:
        say("not_recorded", "sampling log-probabilities of some rows", f"{mismatches} rows' tokens are not the ones that generate drew")
    return Padded(values, lengths=lengths, valid=there), engine


def _record_links(batch: GenerationBatch, ids: list[str], links: list[Link]) -> None:
    requests = {turn.number: turn.request_ids for turn in batch.turns}
    for method in ("framework", "content"):
        chosen = [link for link in links if link.method == method]
        if chosen:
            recording.record_links(
                step=batch.step,
                sequence_ids=[ids[link.row] for link in chosen],
                request_ids=[requests[link.turn][link.request] for link in chosen],
                turns=[link.turn for link in chosen],
                starts=[link.start for link in chosen],
                ends=[link.end for link in chosen],
                method=method,
                ambiguous=[link.ambiguous for link in chosen],
            )


def _record_evaluation(
    trainer: Any,
    batch: GenerationBatch,
    evaluation: Evaluation,
    finished: FinishedBatch,
    completion_mask: Any,
    forwards: Iterator[int],
    say: Say,
) -> None:
    """Trainer or reference scores, one record a forward chunk, and the trainer's routing."""
    count = len(finished.lengths)
    trainers = evaluation.source == "trainer"
    for start in range(0, count, evaluation.rows_per_forward):
        rows = slice(start, min(start + evaluation.rows_per_forward, count))
        valid, lengths = completion_mask[rows], finished.lengths[rows]
        recording.record_scores(
            step=batch.step,
            sequence_ids=batch.sequence_ids(range(rows.start, rows.stop)),
            source=evaluation.source,
            logprobs=Padded(evaluation.logprobs[rows], lengths=lengths, valid=valid),
            entropies=None if evaluation.entropies is None else Padded(evaluation.entropies[rows], lengths=lengths, valid=valid),
            policy_version=str(batch.step) if trainers else "reference",
            policy_updates=batch.step if trainers else None,
            forward="recompute",
            micro_batch=next(forwards),
            **trainer_semantics(trainer),
        )
    if evaluation.routing is not None:
        update = Update(
            finished,
            batch.number,
            list(range(count)),
            None,
            batch.step,
            evaluation.width - completion_mask.shape[1],
            evaluation.width,
            0,
            evaluation.routing,
            "trainer",
        )
        record_update_routing(update, say)


def trainer_semantics(trainer: Any) -> dict[str, Any]:
    """What TRL's own log-probabilities are: tempered, never truncated."""
    return {
        "temperature": float(trainer.temperature),
        "logprob_mode": "tempered",
        "dtype": settings.compute_dtype(trainer),
        "weight_dtype": settings.weight_dtype(trainer.model),
        "backend": "trl",
    }


def _record_rollout_routing(trainer: Any, batch: GenerationBatch, ids: list[str], links: list[Link], syncs: int | None) -> None:
    kept = routed_rows(batch, links)
    updates = settings.policy_updates(trainer)
    for turn in batch.turns:
        if turn.number not in kept:
            continue
        rows = kept[turn.number]
        routed = turn.routed
        everything = rows.requests == list(range(routed.experts.shape[0]))

        def chosen(values: Any, everything: bool = everything, requests: list[int] = rows.requests) -> Any:
            return values if everything else values[requests]

        recording.record_routing(
            step=batch.step,
            sequence_ids=[ids[row] for row in rows.rows],
            source="rollout",
            experts=Padded(chosen(routed.experts), mask=rows.mask),
            weights=None if routed.weights is None else Padded(chosen(routed.weights), mask=rows.mask),
            num_experts=routed.num_experts,
            layer_ids=routed.layer_ids,
            first_position=rows.first_positions,
            policy_version=str(updates),
            policy_updates=updates,
            policy_syncs=syncs,
        )


class Update(NamedTuple):
    """One use of a batch's rows in a forward of the trainer.

    rows: their numbers in the batch. places: their places in the forward where it also held others; None where it is all of them.
    global_step: optimizer steps behind the weights. forward: number of the forward in this process.
    """

    batch: FinishedBatch
    number: int
    rows: list[int]
    places: list[int] | None
    global_step: int
    prompt_width: int
    width: int
    forward: int
    window: Any
    source: str = "update"

    @property
    def sequence_ids(self) -> list[str]:
        """Names of the rows."""
        return [f"r{self.batch.rank}-g{self.number}-{row}" for row in self.rows]

    def chosen(self, values: Any) -> Any:
        """The rows' part of ``values``."""
        return values if self.places is None else values[self.places]


def record_update_scores(trainer: Any, update: Update, logprobs: Any, entropies: Any, completion_mask: Any) -> None:
    """Log-probabilities and entropies of a loss forward, (rows, C), still on the device."""
    lengths = [update.batch.lengths[row] for row in update.rows]
    valid = update.chosen(completion_mask)
    recording.record_scores(
        step=update.batch.step,
        sequence_ids=update.sequence_ids,
        source="update",
        update=update.global_step - update.batch.step,
        logprobs=Padded(update.chosen(logprobs.detach()), lengths=lengths, valid=valid),
        entropies=None if entropies is None else Padded(update.chosen(entropies.detach()), lengths=lengths, valid=valid),
        policy_version=str(update.global_step),
        policy_updates=update.global_step,
        forward="update" if trainer.model.training else "recompute",
        micro_batch=update.forward,
        **trainer_semantics(trainer),
    )


def record_update_routing(update: Update, say: Say) -> None:
    """Routing of a forward of the trainer, from its closed window."""
    routed = update.window.forwarded(update.width)
    if routed is None:
        if update.window.failure is not None:
            say("not_recorded", "trainer routing", update.window.failure)
        return
    mask = update.batch.positions(update.rows, update.prompt_width, update.width)
    recording.record_routing(
        step=update.batch.step,
        sequence_ids=update.sequence_ids,
        source=update.source,
        update=update.global_step - update.batch.step if update.source == "update" else 0,
        experts=Padded(update.chosen(routed.experts), mask=mask),
        weights=None if routed.weights is None else Padded(update.chosen(routed.weights), mask=mask),
        num_experts=routed.num_experts,
        layer_ids=routed.layer_ids,
        policy_version=str(update.global_step),
        policy_updates=update.global_step,
    )
