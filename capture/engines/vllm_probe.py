"""The probe (``--probe``): a fixed token sequence that the engine scores when it has been made and after each weight synchronisation.

Read: vLLM 0.30.0, ``vllm.v1.engine.llm_engine.LLMEngine.add_request`` and ``step``; ``vllm.sampling_params.SamplingParams``: prompt
log-probabilities make a request skip the prefix cache. The probe is shorter than one block, so it leaves nothing in that cache either,
and greedy, so it draws no random number. It runs only where nothing else is running or waiting.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from typing import Any

from rlaudit import recording
from rlaudit.capture.hooks import Call

from .vllm_engines import SYNCS, say_once
from .vllm_requests import PROBE

TOKENS = 32
_numbers = itertools.count()
_done: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def probe_tokens(vocabulary: int, block_size: int, longest: int) -> list[int]:
    """Token ids spread over the vocabulary: at most 32, fewer than a block, and two fewer than the longest sequence."""
    count = max(2, min(TOKENS, block_size - 1, longest - 2))
    return [vocabulary * (2 * place + 1) // (2 * count) for place in range(count)]


def _objection(config: Any) -> str | None:
    parallel = config.parallel_config
    if config.model_config.runner_type != "generate":
        return "the model does not generate"
    if parallel.data_parallel_size > 1 or (parallel.distributed_executor_backend == "external_launcher" and parallel.world_size > 1):
        return "several processes drive the engine together: one alone must not give it a request"
    return None


def before_request(call: Call) -> None:
    """A request comes: probe first where the weights are new to the engine."""
    probe(call["self"])


def probe(engine: Any) -> None:
    """Score the fixed sequence where ``--probe`` asks for it, the weights are new to the engine (an LLMEngine) and it is idle.

    The weights that an engine begins with are scored at once: a framework may replace them before the first request (TRL does).
    Random ones (``load_format`` dummy) are not, as they stand for nothing that a trainer has.
    """
    if not recording.wants("probe") or _done.get(engine) == SYNCS.count or engine.output_processor.has_unfinished_requests():
        return
    _done[engine] = SYNCS.count  # before the probe, which is itself a request
    config = engine.vllm_config
    objection = _objection(config)
    if objection is not None:
        say_once("probe", objection)
        return
    if SYNCS.count == 0 and str(config.load_config.load_format) == "dummy":
        return
    tokens = probe_tokens(config.model_config.get_vocab_size(), config.cache_config.block_size, config.model_config.max_model_len)
    params = sys.modules["vllm.sampling_params"].SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    name = f"{PROBE}{next(_numbers)}"
    try:
        engine.add_request(name, {"prompt_token_ids": tokens}, params)
        while engine.output_processor.has_unfinished_requests():
            engine.step()
    except Exception:
        engine.abort_request([name])
        raise
