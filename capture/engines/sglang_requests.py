"""Observing ``TokenizerManager.generate_request``: what is asked for beside the client's wishes, and every finished answer.

Read: SGLang 0.5.19, ``TokenizerManager.generate_request``, ``_stream_one_response``, ``_handle_batch_request``, ``_handle_abort_req``. The
generator yields an answer, a list of answers (batches) or, streaming, chunks. Only chunks with a finish reason are looked into.
"""

from __future__ import annotations

from typing import Any

from rlaudit import recording
from rlaudit.capture.hooks import Call

from .sglang_managers import ManagerFacts, Running, facts_of
from .sglang_routing import Encoded, submit_routing
from .sglang_rows import Answer, first_version, input_tokens, record_answer
from .vllm_engines import say_once
from .vllm_opt_ins import changed

HEALTH_CHECK = "HEALTH_CHECK"
LOGPROB_KEYS = (
    "input_token_logprobs",
    "output_token_logprobs",
    "output_token_logprobs_length",
    "input_top_logprobs",
    "output_top_logprobs",
    "input_token_ids_logprobs",
    "output_token_ids_logprobs",
)
"""Keys of meta_info that are there only because log-probabilities were asked for."""
_told: set[str] = set()


class Observed:
    """One call: its generator's arguments and what is known of it."""

    __slots__ = ("done", "facts", "manager", "obj", "running")

    def __init__(self, manager: Any, obj: Any, facts: ManagerFacts, running: Running) -> None:
        self.manager = manager
        self.obj = obj
        self.facts = facts
        self.running = running
        self.done = False


def _tell(name: str, message: str) -> None:
    if name not in _told:
        _told.add(name)
        changed(name, message)


def _is_generation(obj: Any) -> bool:
    rid = getattr(obj, "rid", None)
    return hasattr(obj, "return_logprob") and not (isinstance(rid, str) and rid.startswith(HEALTH_CHECK))


def _deltas(manager: Any, obj: Any) -> bool:
    if not getattr(obj, "stream", False):
        return False
    own = getattr(manager, "incremental_streaming_output", None)
    arguments = manager.server_args
    older = getattr(arguments, "incremental_streaming_output", False) or getattr(arguments, "stream_output", False)
    return bool(older if own is None else own)


def ask(manager: Any, obj: Any, running: Running) -> None:
    """Ask for what the user opted into and the client didn't ask for. Changes no sampling."""
    if recording.wants("record_logprobs"):
        asked = obj.return_logprob
        if isinstance(asked, list) and any(asked) and not all(asked):
            say_once("logprobs", "a batch that asks for log-probabilities of some of its prompts is left as it is")
        elif not (all(asked) if isinstance(asked, list) else asked):
            obj.return_logprob, obj.logprob_start_len, obj.top_logprobs_num, obj.token_ids_logprob = True, None, None, None
            running.hide_logprobs = True
            _tell("return_logprob", "SGLang returns the sampled tokens' log-probabilities, because of --record-logprobs")
    if (
        recording.wants("record_routing")
        and getattr(manager.server_args, "enable_return_routed_experts", False)
        and getattr(obj, "return_routed_experts", None) is False
    ):
        obj.return_routed_experts = running.hide_routing = True


def begins(call: Call) -> Observed | None:
    """A call begins; None for embeddings and health checks."""
    manager, obj = call["self"], call["obj"]
    if not _is_generation(obj):
        return None
    facts = facts_of(manager)
    running = facts.begin(manager, _deltas(manager, obj))
    try:
        ask(manager, obj, running)
    except Exception:
        facts.calls.discard(running)
        raise
    return Observed(manager, obj, facts, running)


def item(observed: Observed | None, value: Any, call: Call) -> None:
    """The generator yields: record what is finished, remember what isn't, take out what the client didn't ask for."""
    if observed is None:
        return
    for place, out in enumerate(value if isinstance(value, list) else (value,)):
        meta = out.get("meta_info")
        if meta is None or "id" not in meta:
            continue
        try:
            _chunk(observed, out, meta, int(out.get("index", place)))
        finally:
            _strip(observed.running, meta)
    if _is_all(observed.obj, value):
        observed.facts.calls.discard(observed.running)  # callers that take one answer drop the generator, which is closed some time later


def _is_all(obj: Any, value: Any) -> bool:
    """True where ``value`` is the last that the engine computes for this call."""
    if isinstance(value, list):
        return True
    meta = value.get("meta_info") or {}
    return bool(getattr(obj, "is_single", True)) and meta.get("finish_reason") is not None


def _strip(running: Running, meta: dict[str, Any]) -> None:
    if running.hide_logprobs:
        for key in LOGPROB_KEYS:
            meta.pop(key, None)
    if running.hide_routing:
        meta.pop("routed_experts", None)


def _chunk(observed: Observed, out: dict[str, Any], meta: dict[str, Any], index: int) -> None:
    running, rid = observed.running, str(meta["id"])
    entries = meta.get("output_token_logprobs")
    if running.parts is not None:
        part = running.parts.setdefault(rid, ([], []))
        part[0].extend(out.get("output_ids") or ())
        part[1].extend(entries or ())
    reason = meta.get("finish_reason")
    if reason is None:
        running.last[rid] = ({**out, "index": index}, entries)
        return
    before = running.last.pop(rid, None)
    name = str(reason.get("type")) if isinstance(reason, dict) else str(reason)
    _record(observed, out, index, _output(running, out, entries, before, name), name)


def _output(running: Running, out: dict[str, Any], entries: Any, before: Any, reason: str) -> tuple[list[int] | None, Any]:
    """Output ids and log-probability entries of a finished sub-request.

    An answer to a stream that is aborted in the queue holds only its last token; the chunk before it then holds them all.
    """
    meta, rid = out["meta_info"], str(out["meta_info"]["id"])
    if running.parts is not None:
        whole = running.parts.pop(rid)
        return whole[0], whole[1] if entries is not None else None
    tokens: list[int] | None = out.get("output_ids")
    if tokens is None:
        return ([entry[1] for entry in entries] if entries else None), entries
    counted = meta.get("completion_tokens")
    if reason == "abort" and counted is not None and counted != len(tokens):
        earlier = before[0].get("output_ids") if before else None
        if earlier is not None and len(earlier) == counted:
            return list(earlier), entries
        if entries is not None and len(entries) == counted:
            return [entry[1] for entry in entries], entries
        say_once("aborted calls", "the engine does not say which tokens an aborted call had given")
        return None, None
    return list(tokens), entries


def _record(observed: Observed, out: dict[str, Any], index: int, output: tuple[list[int] | None, Any], reason: str) -> None:
    meta, obj, running, facts = out["meta_info"], observed.obj, observed.running, observed.facts
    prompt = input_tokens(obj, out, index)
    record_answer(Answer(meta, output[0], output[1], prompt, index, reason), observed.manager, obj, running, facts)
    text = meta.get("routed_experts")
    if isinstance(text, str):
        start = int(getattr(obj, "routed_experts_start_len", 0) or 0)
        submit_routing(Encoded(text, str(meta["id"]), start, prompt, first_version(meta), running.syncs), facts)


def ends(observed: Observed | None) -> None:
    """The generator is over: what it left unfinished was aborted (the client went away, or the caller dropped it)."""
    if observed is None or observed.done:
        return
    observed.done = True
    running = observed.running
    observed.facts.calls.discard(running)
    for rid, (out, entries) in running.last.items():
        tokens, given = running.parts[rid] if running.parts is not None else (out.get("output_ids") or [], entries)
        if entries is None or given is None:
            tokens, given = list(tokens), None
        else:  # both grow while a stream runs
            both = min(len(tokens), len(given))
            tokens, given = list(tokens[:both]), list(given[:both])
        _record(observed, out, out["index"], (tokens, given), "abort")
    running.last.clear()
