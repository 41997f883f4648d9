"""The probe (``--probe``): a fixed token sequence that the engine scores before its first call and the first one after each update.

After a new label, too: whether weights came with it is what the probe shows.

Read: SGLang 0.5.19, ``TokenizerManager.generate_request`` and ``GenerateReqInput``. It runs only where nothing else does, so that no call's
batch changes; greedy, so that it draws no random number; under a cache key of its own (``extra_key``), so that no call finds its prefix.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any

from rlaudit import recording
from rlaudit.capture.hooks import Call

from .sglang_managers import ManagerFacts, facts_of
from .sglang_requests import Observed, item
from .vllm_engines import say_once

PROBE = "rlaudit-probe-"
"""Beginning of the request ids and the cache keys of probes."""
TOKENS = 32
SECONDS = 60.0
"""A probe that takes longer is given up, and said."""

Generate = Callable[..., AsyncGenerator[Any, Any]]


def probe_tokens(vocabulary: int, longest: int) -> list[int]:
    """At most 32 token ids spread over the vocabulary, two fewer than the longest sequence."""
    count = max(2, min(TOKENS, longest - 2))
    return [vocabulary * (2 * place + 1) // (2 * count) for place in range(count)]


def _objection(manager: Any) -> str | None:
    arguments = manager.server_args
    if getattr(arguments, "dp_size", 1) > 1:
        return "several data-parallel replicas stand behind the front end: a probe would reach one of them"
    if getattr(arguments, "disaggregation_mode", "null") not in (None, "null"):
        return "prefill and decoding are in different engines"
    if not getattr(manager, "is_generation", True):
        return "the model does not generate"
    return None


def before_call(generate: Generate) -> Callable[[Call], Any]:
    """What is awaited before each call: a probe where the weights are new and the engine is idle. ``generate``: the function unobserved."""

    async def prepare(call: Call) -> None:
        manager, obj = call["self"], call["obj"]
        if not recording.wants("probe") or not hasattr(obj, "return_logprob"):
            return
        facts = facts_of(manager)
        if facts.probing is None:
            if facts.probed == facts.weights(manager):
                return
            objection = _objection(manager)
            if objection is not None:
                facts.probed = facts.weights(manager)
                say_once("probe", objection)
                return
            if facts.calls or facts.updating or getattr(manager, "is_pause", False):
                _skipped(facts, manager)
                return
            facts.probing = asyncio.ensure_future(_probe(generate, manager, type(obj), facts))
        await asyncio.wait([facts.probing])

    return prepare


def _skipped(facts: ManagerFacts, manager: Any) -> None:
    if facts.probe_skipped != facts.weights(manager):
        facts.probe_skipped = facts.weights(manager)
        message = "the engine was not idle when a call came: no probe of these weights yet"
        recording.record_event(kind="not_recorded", name="probe", message=message, detail={"policy_syncs": facts.syncs})


async def _probe(generate: Generate, manager: Any, request: Any, facts: ManagerFacts) -> None:
    facts.probed = facts.weights(manager)
    rid = f"{PROBE}{uuid.uuid4().hex}"
    try:
        await asyncio.wait_for(_score(generate, manager, request, facts, rid), SECONDS)
    except Exception as error:
        say_once("probe", f"a probe failed ({type(error).__name__}: {error})")
        manager.abort_request(rid)
    finally:
        facts.probing = None


async def _score(generate: Generate, manager: Any, request: Any, facts: ManagerFacts, rid: str) -> None:
    greedy = {"temperature": 0.0, "max_new_tokens": 1, "ignore_eos": True}
    tokens = probe_tokens(facts.vocabulary, facts.longest)
    obj = request(rid=rid, input_ids=tokens, sampling_params=greedy, return_logprob=True, logprob_start_len=0)
    obj.log_metrics = False
    if hasattr(obj, "extra_key"):
        obj.extra_key = PROBE
    running = facts.begin(manager, deltas=False)
    running.phase = "probe"
    observed = Observed(manager, obj, facts, running)
    try:
        async for value in generate(manager, obj, None):
            item(observed, value, Call({}))
    finally:
        facts.calls.discard(running)
