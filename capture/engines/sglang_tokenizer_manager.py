"""Adapter for SGLang's front end: every call of the in-process Engine, the HTTP server and the frameworks that call it directly.

Read: SGLang 0.5.19, ``sglang.srt.managers.tokenizer_manager.TokenizerManager``. ``generate_request`` is an asynchronous generator with
these parameters from 0.4.10 to 0.5.23. Modes that bypass it (SGLANG_RUST_SERVER, gRPC) are not observed.
"""

from __future__ import annotations

from rlaudit.capture.hooks import Adapter, Attachment, Target

from .sglang_probe import before_call
from .sglang_requests import begins, ends, item
from .sglang_weights import UPDATES, observe_weights

ADAPTER = Adapter(
    name="SGLang",
    kind="engine",
    distribution="sglang",
    versions=">=0.4.10",
    module="sglang.srt.managers.tokenizer_manager",
    targets=(
        Target("TokenizerManager.generate_request", ("obj", "request")),
        *(Target(f"TokenizerManager.{name}", ("obj",), required=False) for name in UPDATES),
        Target("TokenizerManager.update_weight_version", ("obj",), required=False),
        Target("TokenizerManager.pause_generation", ("obj",), required=False),
        Target("TokenizerManager.continue_generation", ("obj",), required=False),
        Target("TokenizerManager.flush_cache", required=False),
    ),
    records="requests: tokens, log-probabilities, sampling parameters; routed experts where answers have them; weight updates",
)


def attach(attachment: Attachment) -> None:
    """Observe calls, weight updates and controls."""
    path = "TokenizerManager.generate_request"
    attachment.observe_items(path, prepare=before_call(attachment.original(path)), before=begins, item=item, cleanup=ends)
    observe_weights(attachment)
