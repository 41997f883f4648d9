"""Rows of ``requests`` from SGLang's answers.

Read: SGLang 0.5.19, ``TokenizerManager._handle_batch_output``, ``_handle_abort_req`` and ``add_logprob_to_meta_info``;
``sglang.srt.sampling.sampling_params.SamplingParams`` (defaults, and -1 or 2**30 for all of top-k); ``sglang.srt.utils.weight_versions``
(spans count output tokens from 0). Answers are read by name: other versions have other keys beside these.
"""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

from rlaudit import recording

from .sglang_managers import ManagerFacts, Running, untempered
from .vllm_engines import say_once

GREEDY = 1e-6
"""Temperatures below it are greedy in SGLang, whose log-probabilities are then untempered."""
ALL_TOP_K = 1 << 30
DEFAULTS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


class Answer(NamedTuple):
    """One finished sub-request. entries: [log-probability, token, text] a position, or None. place: which of the call's answers it is."""

    meta: dict[str, Any]
    tokens: list[int] | None
    entries: list[Any] | None
    prompt: list[int] | None
    place: int
    reason: str


def _own(value: Any, prompt: int) -> Any:
    """The part of prompt ``prompt`` of an argument that is one for all or a list with one each."""
    return value[prompt] if isinstance(value, list) else value


def prompt_index(obj: Any, index: int) -> int:
    """Which prompt the answer ``index`` is of: the n samples of a prompt follow each other."""
    return index // max(int(getattr(obj, "parallel_sample_num", 1) or 1), 1)


def input_tokens(obj: Any, out: dict[str, Any], index: int) -> list[int] | None:
    """Token ids that the engine was given for an answer; None where the request came as text and the answer doesn't repeat them.

    Also None where the engine counted another number of them (sessions, images), as only it knows what they were.
    """
    tokens = out.get("prompt_token_ids")
    if tokens is None and obj.input_ids is not None:
        many = len(obj.input_ids) > 0 and hasattr(obj.input_ids[0], "__len__")
        tokens = obj.input_ids[prompt_index(obj, index)] if many else obj.input_ids
    if tokens is None:
        return None
    counted = out["meta_info"].get("prompt_tokens")
    if counted is not None and counted != len(tokens):
        say_once("input tokens", "the engine counted other input tokens than the request gave (sessions, images)")
        return None
    return [int(token) for token in tokens]


def _aligned(entries: list[Any] | None, tokens: list[int] | None) -> list[float | None] | None:
    """Log-probabilities (nats) of ``tokens`` from SGLang's entries; None where there are none or they are of other tokens."""
    if entries is None or tokens is None:
        return None
    if [entry[1] for entry in entries] != tokens:
        say_once("logprobs", "the engine gave log-probabilities of other tokens than it returned")
        return None
    return [entry[0] for entry in entries]


def _scored(meta: dict[str, Any], tokens: list[int] | None) -> list[float | None] | None:
    """Log-probabilities of the input tokens, None before ``logprob_start_len`` and for the first that was asked for."""
    entries = meta.get("input_token_logprobs")
    if not entries or not tokens:
        return None
    before = len(tokens) - len(entries)
    if before < 0:
        say_once("input logprobs", "the engine gave more input log-probabilities than there are input tokens")
        return None
    found = _aligned(entries, tokens[before:])
    missing: list[float | None] = [None] * before
    return None if found is None else missing + found


def version_spans(meta: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Spans of output tokens under one label each, as the engine gives them (0.5.19 and later); None where one covers them all."""
    spans = meta.get("weight_versions")
    if not spans or len(spans) < 2:
        return None
    return [{"start": int(one["start"]), "end": int(one["end"]), "version": str(one["version"]), "updates": None} for one in spans]


def first_version(meta: dict[str, Any]) -> str | None:
    """The label of the weights of the first output token."""
    spans = meta.get("weight_versions")
    version = spans[0]["version"] if spans else meta.get("weight_version")
    return None if version is None else str(version)


def sampling_parameters(manager: Any, obj: Any, index: int) -> dict[str, Any]:
    """Sampling parameters of an answer, the server's preferred ones below the request's own."""
    preferred = getattr(manager, "preferred_sampling_params", None) or {}
    return {**preferred, **(_own(obj.sampling_params, prompt_index(obj, index)) or {})}


def _number(parameters: dict[str, Any], name: str) -> float:
    value = parameters.get(name)
    return float(DEFAULTS[name] if value is None else value)


def parent_id(obj: Any, index: int) -> str | None:
    """Identifies the call that an answer is one of n samples of; None where n is 1."""
    samples = int(getattr(obj, "parallel_sample_num", 1) or 1)
    return str(_own(obj.rid, prompt_index(obj, index))) if samples > 1 else None


def answer_row(answer: Answer, parameters: dict[str, Any], raw: bool | None) -> dict[str, Any]:
    """The columns of ``requests`` that an answer itself tells.

    parameters: its sampling parameters. raw: True where the engine's log-probabilities are before temperature; None where that is unknown.
    """
    meta = answer.meta
    temperature, top_k = _number(parameters, "temperature"), int(_number(parameters, "top_k"))
    logprobs = _aligned(answer.entries, answer.tokens)
    scored = _scored(meta, answer.prompt)
    mode = "raw" if temperature < GREEDY or raw else "tempered"
    return {
        "request_id": str(meta["id"]),
        "input_tokens": answer.prompt,
        "output_tokens": answer.tokens,
        "logprobs": logprobs,
        "logprob_mode": None if logprobs is None or (raw is None and temperature not in (0.0, 1.0)) else mode,
        "input_logprobs": scored,
        "input_logprob_mode": None if scored is None else "raw",
        "policy_version": first_version(meta),
        "version_spans": version_spans(meta),
        "cached_tokens": meta.get("cached_tokens"),
        "retractions": meta.get("num_retractions"),
        "finish_reason": answer.reason,
        "temperature": temperature,
        "top_p": _number(parameters, "top_p"),
        "top_k": 0 if top_k < 0 or top_k >= ALL_TOP_K else top_k,
        "min_p": _number(parameters, "min_p"),
        "repetition_penalty": _number(parameters, "repetition_penalty"),
        "sampling": json.dumps(parameters, sort_keys=True, default=str),
        "backend": "sglang",
    }


_PLURAL = {"request_id": "request_ids", "finish_reason": "finish_reasons"}
_LISTS = ("request_id", "input_tokens", "output_tokens", "logprobs", "input_logprobs", "version_spans", "finish_reason", "sampling")
_REQUIRED = ("input_tokens", "output_tokens")


def record_answer(answer: Answer, manager: Any, obj: Any, running: Running, facts: ManagerFacts) -> None:
    """Record one finished or aborted sub-request."""
    row = answer_row(answer, sampling_parameters(manager, obj, answer.place), untempered())
    parent = parent_id(obj, answer.place)
    columns: dict[str, Any] = {
        _PLURAL.get(name, name): [value] if name in _LISTS else value
        for name, value in row.items()
        if value is not None or name in _REQUIRED
    }
    recording.record_request(
        **columns,
        engine_id=facts.engine_id,
        phase=running.phase,
        parent_ids=None if parent is None else [parent],
        policy_syncs=running.syncs,
        dtype=facts.dtype,
        weight_dtype=facts.weight_dtype,
        started=running.started,
        finished=time.time(),
    )
