"""What is behind ``rlaudit.record_*`` in a captured process: copies arguments and hands rows to the recorder.

Every function is guarded: a bad argument is counted and reported, never raised into the training loop.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from rlaudit.capture.recorder import Recorder
from rlaudit.capture.snapshot import Experts, Fixed, Pending, Ragged, Vector


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def guarded(self: RecorderSink, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.recorder.log.failed(f"rlaudit.{method.__name__}", error)

    return guarded


def _values(**columns: Any) -> list[Pending]:
    """One column for each argument that is given: the same for all rows, or one value a row."""
    pending: list[Pending] = []
    for name, value in columns.items():
        if value is None:
            continue
        scalar = isinstance(value, (str, int, float, bool)) or getattr(value, "ndim", 1) == 0
        if scalar:
            pending.append(Fixed(name, value.item() if hasattr(value, "item") else value))
        else:
            pending.append(Vector(name, value))
    return pending


def _lists(rows: int, kinds: dict[str, str], **columns: Any) -> list[Pending]:
    return [Ragged(name, value, kinds[name], rows) for name, value in columns.items() if value is not None]


_KINDS = {
    "prompt_tokens": "<i4",
    "response_tokens": "<i4",
    "input_tokens": "<i4",
    "output_tokens": "<i4",
    "logprobs": "<f4",
    "input_logprobs": "<f4",
    "entropies": "<f4",
    "sampled_mask": "|u1",
    "loss_mask": "|u1",
}
_SEQUENCE_NAMES = {
    "group_ids": "group_id",
    "trajectory_ids": "trajectory_id",
    "turns": "turn",
    "rewards": "reward",
    "advantages": "advantage",
    "finish_reasons": "finish_reason",
    "parent_ids": "parent_id",
}
_POLICY = ("policy_version", "policy_updates", "policy_syncs")
_OPT_INS = ("routing_weights", "record_routing", "record_logprobs", "checksum_weights", "probe")
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class RecorderSink:
    """Implements ``rlaudit.recording.Sink`` on a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    @_guarded
    def record_rollout(self, *, step: int, sequence_ids: Sequence[str], **given: Any) -> None:
        """Rows of ``sequences`` and, with log-probabilities, of ``scores`` with source rollout."""
        rows, ids = len(sequence_ids), list(sequence_ids)
        logprobs = given.pop("logprobs", None)
        semantics = {name: given.pop(name, None) for name in ("forward", "logprob_mode", "dtype", "weight_dtype", "backend")}
        prompts = Ragged("prompt_tokens", given.pop("prompt_tokens"), "<i4", rows)
        lists = _lists(rows, _KINDS, **{name: given.pop(name, None) for name in ("response_tokens", "sampled_mask", "loss_mask")})
        policy = {name: given.get(name) for name in _POLICY}
        temperature = given.get("temperature")
        plain = _values(**{_SEQUENCE_NAMES.get(name, name): value for name, value in given.items()})
        key = _values(step=step, sequence_id=ids)
        if self.recorder.accepts("sequences", rows):
            self.recorder.submit("sequences", rows, [*key, prompts, *lists, *plain], ids, prompts)
        if logprobs is not None and self.recorder.accepts("scores", rows):
            columns = [
                *key,
                *_lists(rows, _KINDS, logprobs=logprobs),
                *_values(source="rollout", update=0, first_position=0, temperature=temperature, **policy, **semantics),
            ]
            self.recorder.submit("scores", rows, columns, ids, prompts)

    @_guarded
    def record_scores(self, *, step: int, sequence_ids: Sequence[str], logprobs: Any, **given: Any) -> None:
        """Rows of ``scores``."""
        rows, ids = len(sequence_ids), list(sequence_ids)
        if not self.recorder.accepts("scores", rows):
            return
        prompts = given.pop("prompt_tokens", None)
        lists = _lists(rows, _KINDS, logprobs=logprobs, entropies=given.pop("entropies", None))
        columns = [*_values(step=step, sequence_id=ids, **given), *lists]
        self.recorder.submit("scores", rows, columns, ids, Ragged("prompt_tokens", prompts, "<i4", rows) if prompts is not None else None)

    @_guarded
    def record_routing(self, *, experts: Any, num_experts: int, layer_ids: Sequence[int], **given: Any) -> None:
        """Rows of ``routing``."""
        ids, requests = given.pop("sequence_ids", None), given.pop("request_ids", None)
        rows = len(ids if ids is not None else requests)
        if not self.recorder.accepts("routing", rows):
            return
        weights = given.pop("weights", None)
        prompts = given.pop("prompt_tokens", None)
        chosen = Experts(experts, weights if self.recorder.config.routing_weights else None, len(layer_ids), num_experts, rows)
        layers = [int(layer) for layer in layer_ids]
        columns = [
            *_values(
                sequence_id=list(ids) if ids is not None else None, request_id=list(requests) if requests is not None else None, **given
            ),
            *_values(num_experts=num_experts, top_k=int(chosen.top_k)),
            Fixed("layer_ids", layers),
            chosen,
        ]
        self.recorder.submit("routing", rows, columns, ids, Ragged("prompt_tokens", prompts, "<i4", rows) if prompts is not None else None)

    @_guarded
    def record_request(self, *, request_ids: Sequence[str], input_tokens: Any, output_tokens: Any, **given: Any) -> None:
        """Rows of ``requests``."""
        rows = len(request_ids)
        if not self.recorder.accepts("requests", rows):
            return
        floats = {name: given.pop(name, None) for name in ("logprobs", "input_logprobs")}
        lists = _lists(rows, _KINDS, input_tokens=input_tokens, output_tokens=output_tokens, **floats)
        columns = [*_values(request_id=list(request_ids), **{_SEQUENCE_NAMES.get(n, n): v for n, v in given.items()}), *lists]
        self.recorder.submit("requests", rows, columns)

    @_guarded
    def record_links(self, *, sequence_ids: Sequence[str], request_ids: Sequence[str], **given: Any) -> None:
        """Rows of ``links``."""
        if not self.recorder.accepts("links", len(sequence_ids)):
            return
        renamed = {"turns": "turn", "starts": "start", "ends": "end"}
        columns = _values(sequence_id=list(sequence_ids), request_id=list(request_ids), **{renamed.get(n, n): v for n, v in given.items()})
        self.recorder.submit("links", len(sequence_ids), columns)

    @_guarded
    def record_weights(self, **given: Any) -> None:
        """Rows of ``weights``: one, or one a tensor."""
        rows = 1 if isinstance(given.get("tensor"), (str, type(None))) else len(given["tensor"])
        if rows and self.recorder.accepts("weights", rows):
            self.recorder.submit("weights", rows, _values(time=time.time(), **given))

    @_guarded
    def record_metrics(self, *, step: int, framework: str, values: dict[str, float]) -> None:
        """Rows of ``framework_metrics``; what is not a number is left out."""
        numbers = {name: float(value) for name, value in values.items() if isinstance(value, (int, float)) or hasattr(value, "item")}
        if not self.recorder.accepts("framework_metrics", len(numbers)):
            return
        columns = _values(step=step, framework=framework, name=list(numbers), value=list(numbers.values()))
        self.recorder.submit("framework_metrics", len(numbers), columns)

    @_guarded
    def record_event(
        self, *, kind: str, name: str, message: str | None = None, count: int | None = None, detail: dict[str, Any] | None = None
    ) -> None:
        """One row of ``events``, written at once."""
        self.recorder.event(kind, name, message, count, detail)

    def wants(self, what: str) -> bool:
        """True where the rows of a table would be recorded now, or an opt-in of ``CaptureConfig`` (``_OPT_INS``) is on."""
        return bool(getattr(self.recorder.config, what)) if what in _OPT_INS else self.recorder.wants(what)

    @_guarded
    def step(self, step: int) -> None:
        """The loop's step ended."""
        self.recorder.step_done(step)
