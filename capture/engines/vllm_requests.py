"""Rows of ``requests`` and ``routing`` from a finished sequence in vLLM's output processor.

Read: vLLM 0.30.0, ``vllm.v1.engine.output_processor.RequestState``, ``vllm.v1.engine.logprobs.LogprobsProcessor``,
``vllm.logprobs.FlatLogprobs``, ``vllm.sampling_params.SamplingParams``. Nothing is done for a token that is streamed; lists are made
once, when the sequence is finished.
"""

from __future__ import annotations

import json
import time
from typing import Any

from rlaudit import recording

from .vllm_engines import LOGPROB_MODES, EngineFacts, Running, say_once
from .vllm_moe import routed_layers

PROBE = "rlaudit-probe-"
"""Beginning of the request ids of probes."""


def chosen_logprobs(logprobs: Any, tokens: list[int]) -> list[float | None] | None:
    """Log-probability of each token (nats, None where the engine has none) from the engine's container.

    logprobs: one dictionary {token: Logprob} a position (None for a prompt's first), or ``FlatLogprobs``, in which the token itself comes
    first at each position. None where there is no container or it covers another number of tokens.
    """
    if logprobs is None or len(logprobs) != len(tokens):
        return None
    if hasattr(logprobs, "start_indices"):
        starts, ends, values = logprobs.start_indices, logprobs.end_indices, logprobs.logprobs
        return [values[start] if end > start else None for start, end in zip(starts, ends, strict=True)]
    return [one[token].logprob if one else None for one, token in zip(logprobs, tokens, strict=True)]


def sampling_json(params: Any) -> str:
    """All sampling parameters as the engine holds them, in alphabetical order; without the derived ones, whose names begin with _."""
    fields = {name: getattr(params, name) for name in params.__struct_fields__ if not name.startswith("_")}
    return json.dumps(fields, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return getattr(value, "name", None) or str(value)


def version_spans(completion: Any, running: Running, version: str | None, tokens: int) -> list[dict[str, Any]] | None:
    """Spans of output tokens under one version each; None where one version covers them all.

    From the engine's own ``weight_versions`` (vLLM 0.32 and later) where it gives them, otherwise from the changes of weights that this
    process saw while the request ran.
    """
    own = getattr(completion, "weight_versions", None)
    if own:
        spans = [{"start": int(s.start), "end": int(s.end), "version": str(s.version), "updates": None} for s in own]
    else:
        edges = [0, *(min(place, tokens) for place, _ in running.marks), tokens]
        labels = [label for _, label in running.marks] + [version]
        spans = [
            {"start": start, "end": end, "version": label, "updates": None}
            for start, end, label in zip(edges[:-1], edges[1:], labels, strict=True)
            if end > start
        ]
    return spans if len(spans) > 1 else None


def record_finished(state: Any, completion: Any, running: Running, facts: EngineFacts, version: str | None) -> None:
    """Record one finished sequence: ``state`` a RequestState, ``completion`` the CompletionOutput made of it.

    version: the label of the engine's weights now.
    """
    tokens = list(state.detokenizer.output_token_ids)
    prompt = list(state.prompt_token_ids or ())
    params, processor = running.params, state.logprobs_processor
    mode = LOGPROB_MODES.get(facts.logprobs_mode)
    logprobs = None
    if processor.logprobs is not None:
        if mode is None:
            say_once("logprobs", f"logprobs_mode is {facts.logprobs_mode}: these are not log-probabilities")
        else:
            logprobs = chosen_logprobs(processor.logprobs, tokens)
            if logprobs is None:
                say_once("logprobs", "the engine gave log-probabilities for another number of tokens than it gave tokens")
    scored = running.prompt_logprobs if running.prompt_logprobs is not None else processor.prompt_logprobs
    input_logprobs = chosen_logprobs(scored, prompt) if scored is not None else None
    suffix = f"#{running.turns}" if running.turns else ""  # streamed input: one state finishes several times
    request_id = f"{state.request_id}{suffix}@{facts.engine_id}"
    running.turns += 1
    spans = version_spans(completion, running, version, len(tokens))
    own = getattr(completion, "weight_versions", None)
    cached = state.num_cached_tokens
    recording.record_request(
        request_ids=[request_id],
        input_tokens=[prompt],
        output_tokens=[tokens],
        logprobs=None if logprobs is None else [logprobs],
        input_logprobs=None if input_logprobs is None else [input_logprobs],
        engine_id=facts.engine_id,
        phase="probe" if state.request_id.startswith(PROBE) else None,
        parent_ids=None if running.parent is None else [f"{running.parent.request_id}@{facts.engine_id}"],
        logprob_mode=mode if logprobs is not None else None,
        input_logprob_mode="raw" if input_logprobs is not None else None,
        policy_version=str(own[0].version) if own else running.version,
        policy_syncs=running.syncs,
        version_spans=None if spans is None else [spans],
        cached_tokens=cached if isinstance(cached, int) and cached >= 0 else None,
        finish_reasons=[str(completion.finish_reason)],
        temperature=float(params.temperature),
        top_p=float(params.top_p),
        top_k=max(int(params.top_k), 0),  # older versions write "all" as -1
        min_p=float(params.min_p),
        repetition_penalty=float(params.repetition_penalty),
        sampling=[sampling_json(params)],
        dtype=facts.dtype,
        weight_dtype=facts.weight_dtype,
        backend="vllm",
        started=float(running.started),
        finished=time.time(),
    )
    experts = getattr(completion, "routed_experts", None)
    if experts is not None and recording.wants("routing"):
        _record_routing(request_id, experts, prompt, running, facts)


def _record_routing(request_id: str, experts: Any, prompt: list[int], running: Running, facts: EngineFacts) -> None:
    """``experts``: (tokens, layers, top_k). The engine counts all decoder layers, dense ones too; those are left out here."""
    try:
        routed = routed_layers(facts.text_config)
    except ValueError as reason:
        say_once("routing", str(reason))
        return
    if routed is None or experts.shape[1] not in (routed.layers, len(routed.layer_ids)):
        say_once("routing", f"the engine's routing has {experts.shape[1]} layers; the model's configuration says {routed}")
        return
    if experts.shape[1] != len(routed.layer_ids):
        experts = experts[:, list(routed.layer_ids)]
    recording.record_routing(
        step=None,
        sequence_ids=None,
        request_ids=[request_id],
        source="rollout",
        experts=[experts],
        num_experts=routed.num_experts,
        layer_ids=routed.layer_ids,
        first_position=int(getattr(running.params, "routed_experts_prompt_start", 0) or 0),
        policy_version=running.version,
        policy_syncs=running.syncs,
        prompt_tokens=[prompt],
    )
