"""Rows of ``routing`` from SGLang's routed experts, decoded in a thread of their own: the event loop serves requests meanwhile.

Read: SGLang 0.5.19, ``TokenizerManager._handle_batch_output`` and ``sglang.srt.state_capturer.base``: base64 of int32, (rows, all decoder
layers, top_k) in C order without its shape; row i is token i's routing, from ``routed_experts_start_len`` on; the last token has none.
"""

from __future__ import annotations

import base64
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from rlaudit import recording

from .sglang_managers import ManagerFacts
from .vllm_engines import say_once
from .vllm_moe import Routed, routed_layers

WAITING_BYTES = 512 << 20
"""Encoded routing that may wait for its decoding; more is dropped, and said."""


class Encoded(NamedTuple):
    """Routed experts of one sub-request as the answer carries them, and what their row says."""

    text: str
    request_id: str
    first_position: int
    prompt: list[int] | None
    version: str | None
    syncs: int


class _Decoder:
    """One thread a process, begun with the first answer."""

    def __init__(self) -> None:
        self.waiting = 0
        self._lock = threading.Lock()
        self._pid = 0
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, encoded: Encoded, routed: Routed, top_k: int) -> None:
        size = len(encoded.text)
        with self._lock:
            if self._pool is None or self._pid != os.getpid():  # a forked child has no threads
                self._pool, self._pid, self.waiting = ThreadPoolExecutor(1, "rlaudit-sglang-routing"), os.getpid(), 0
            if self.waiting and self.waiting + size > WAITING_BYTES:
                say_once("routing", f"more than {WAITING_BYTES >> 20} MiB of routing waited for decoding: some is dropped")
                return
            self.waiting += size
        self._pool.submit(self._decode, encoded, routed, top_k)

    def _decode(self, encoded: Encoded, routed: Routed, top_k: int) -> None:
        try:
            record_routing(encoded, routed, top_k)
        except Exception as error:
            say_once("routing", f"routed experts could not be decoded ({type(error).__name__}: {error})")
        finally:
            with self._lock:
                self.waiting -= len(encoded.text)


_decoder = _Decoder()


def decoded(text: str, layers: int, top_k: int) -> Any:
    """(rows, layers, top_k) int32. ValueError where the length doesn't fit."""
    numpy = sys.modules["numpy"]
    return numpy.frombuffer(base64.b64decode(text), dtype="<i4").reshape(-1, layers, top_k)


def submit_routing(encoded: Encoded, facts: ManagerFacts) -> None:
    """Have the routing of a finished sub-request decoded and recorded."""
    if not recording.wants("routing"):
        return
    try:
        routed = routed_layers(facts.text_config)
    except ValueError as reason:
        say_once("routing", str(reason))
        return
    top_k = getattr(facts.text_config, "num_experts_per_tok", None)
    if routed is None or not isinstance(top_k, int):
        say_once("routing", "the model's configuration doesn't say how it routes")
        return
    _decoder.submit(encoded, routed, top_k)


def record_routing(encoded: Encoded, routed: Routed, top_k: int) -> None:
    """Record decoded routing; dense layers, which the engine writes as zeros, are left out."""
    experts = decoded(encoded.text, routed.layers, top_k)
    if len(routed.layer_ids) != routed.layers:
        experts = experts[:, list(routed.layer_ids)]
    recording.record_routing(
        step=None,
        sequence_ids=None,
        request_ids=[encoded.request_id],
        source="rollout",
        experts=[experts],
        num_experts=routed.num_experts,
        layer_ids=routed.layer_ids,
        first_position=encoded.first_position,
        policy_version=encoded.version,
        policy_syncs=encoded.syncs,
        prompt_tokens=None if encoded.prompt is None else [encoded.prompt],
    )
