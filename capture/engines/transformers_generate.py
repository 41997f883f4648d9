"""Sampling log-probabilities of Hugging Face ``generate``, read at the sampler, after every processor and warper.

``generate`` has them for one moment only: the processed scores of a step (B, V) exist when the token is drawn.
While a tap is open, a logits processor that changes nothing is appended last (the public ``logits_processor`` argument would
land before temperature and truncation) and a stopping criterion that never stops reads the token that was drawn.
Nothing else of ``generate``'s path depends on their number: compilation and cache are chosen from the
generation config. Modes that treat processors differently (assisted decoding, beams, custom loops) are left alone.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, NamedTuple

from rlaudit.capture.hooks import Adapter, Attachment, Call, Target
from rlaudit.capture.models.host import host_copy, mark, torch

ADAPTER = Adapter(
    name="Hugging Face generate",
    kind="engine",
    distribution="transformers",
    versions=">=4.56",
    module="transformers.generation.utils",
    targets=(
        Target("GenerationMixin._get_logits_processor", ("generation_config",)),
        Target("GenerationMixin._get_stopping_criteria", ("generation_config",)),
        Target("GenerationMixin.generate", ("assistant_model",), required=False),
    ),
    records="log-probabilities of sampled tokens, for the frameworks that sample with generate",
)
PLAIN_MODES = ("sample", "greedy_search")
"""Generation modes that run every processor once a step over all rows and draw one token a row."""


class SamplingParameters(NamedTuple):
    """How tokens were drawn, in the units of the ``sequences`` table (0 temperature is greedy, 0 top_k keeps all)."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


class Sampled(NamedTuple):
    """What a tap saw, on the host: logprobs (B, T) float32 and tokens (B, T) int64, padding after a row's end included.

    prompt_width: width of the padded prompts that ``generate`` was given.
    """

    logprobs: Any
    tokens: Any
    prompt_width: int
    parameters: SamplingParameters


class SamplingTap:
    """Collects one ``generate`` call's sampling log-probabilities; ``refused`` says why there are none."""

    def __init__(self) -> None:
        self.refused: str | None = None
        self._thread = threading.get_ident()
        self._calls = 0
        self._scores_BV: Any = None
        self._steps: list[tuple[Any, Any]] = []
        self._prompt_width = 0
        self._parameters = SamplingParameters()
        self._device: Any = None
        self._copied: Any = None

    def result(self) -> Sampled | None:
        """What was collected; None where nothing was or the tap refused. Waits for the device."""
        if self.refused is not None or not self._steps:
            return None
        if self._copied is not None:
            self._copied.synchronize()
        logprobs, tokens = (torch().stack(part, dim=1) for part in zip(*self._steps, strict=True))
        return Sampled(logprobs, tokens, self._prompt_width, self._parameters)

    def begin(self, model: Any, generation_config: Any) -> bool:
        """A ``generate`` call of ``model`` starts; True where it is one that can be read."""
        self._calls += 1
        self.refused = self.refused or self._objection(model, generation_config)
        self._parameters = sampling_parameters(generation_config)
        return self.refused is None

    def _objection(self, model: Any, generation_config: Any) -> str | None:
        mode = generation_config.get_generation_mode()
        mode = getattr(mode, "value", mode)
        if self._calls > 1:
            return "one generation called generate more than once"
        if mode not in PLAIN_MODES:
            return f"generation mode {mode} is not read"
        if not _last_word_is_the_mixins(model):
            return f"{type(model).__name__} adds processors of its own after everything else"
        return None

    def keep(self, input_ids: Any, scores_BV: Any) -> None:
        """Processed scores of a step; held until the token is drawn, as ``generate`` itself holds them."""
        if not self._steps:
            self._prompt_width = int(input_ids.shape[-1])
        self._scores_BV = scores_BV

    def drawn(self, input_ids: Any) -> None:
        """The step's token is the last of ``input_ids``: read its log-probability and let the scores go."""
        scores_BV, self._scores_BV = self._scores_BV, None
        if scores_BV is None or self.refused is not None:
            return
        token_B1 = input_ids[:, -1:]
        with torch().no_grad():
            logprob_B1 = torch().log_softmax(scores_BV.float(), dim=-1).gather(-1, token_B1)
        self._device = logprob_B1.device
        self._steps.append((host_copy(logprob_B1.squeeze(-1)), host_copy(token_B1.squeeze(-1))))

    def close(self) -> None:
        """No more steps come; nothing of the device is kept."""
        self._scores_BV = None
        self._copied = mark(self._device)

    def mine(self) -> bool:
        """True on the thread that opened the tap: a ``generate`` elsewhere is somebody else's."""
        return self._thread == threading.get_ident()


class _LastProcessor:
    """Hands a step's processed scores to the tap and returns them as they are.

    A class with a plain ``__call__``: ``LogitsProcessorList`` reads its signature.
    """

    def __init__(self, tap: SamplingTap) -> None:
        self._tap = tap

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        try:
            self._tap.keep(input_ids, scores)
        except Exception as error:
            self._tap.refused = f"{type(error).__name__}: {error}"
        return scores


class _NeverStops:
    """Tells the tap that the step's token is drawn; stops no row."""

    def __init__(self, tap: SamplingTap) -> None:
        self._tap = tap

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        try:
            self._tap.drawn(input_ids)
        except Exception as error:
            self._tap.refused = f"{type(error).__name__}: {error}"
        return torch().zeros(input_ids.shape[0], dtype=torch().bool, device=input_ids.device)


_open: list[SamplingTap] = []


def open_tap() -> SamplingTap:
    """Read the next ``generate`` call of this thread. ``close_tap`` must follow in any case."""
    tap = SamplingTap()
    _open.append(tap)
    return tap


def close_tap(tap: SamplingTap) -> None:
    """Stop reading; closing twice is harmless."""
    if tap in _open:
        _open.remove(tap)
        tap.close()


def sampling_parameters(generation_config: Any) -> SamplingParameters:
    """The effective parameters of a generation config; what transformers leaves out (None) changes nothing."""

    def effective(name: str, neutral: float) -> float:
        value = getattr(generation_config, name, None)
        return neutral if value is None else value

    greedy = not effective("do_sample", False)
    return SamplingParameters(
        0.0 if greedy else float(effective("temperature", 1.0)),
        float(effective("top_p", 1.0)),
        int(effective("top_k", 0)),
        float(effective("min_p", 0.0)),
        float(effective("repetition_penalty", 1.0)),
    )


def _last_word_is_the_mixins(model: Any) -> bool:
    """False for models that extend the processor list after the mixin made it: the tap would not be last."""
    mixin = sys.modules["transformers.generation.utils"].GenerationMixin
    return getattr(type(model), "_get_logits_processor", None) is mixin._get_logits_processor


def _current() -> SamplingTap | None:
    return _open[-1] if _open and _open[-1].mine() else None


def _before_generate(call: Call) -> None:
    tap = _current()
    if tap is None:
        return
    if call.get("assistant_model") is not None:
        tap.refused = "assisted decoding is not read"
    if call.get("custom_generate") is not None:
        tap.refused = "a custom generation loop is not read"


def _before_processors(call: Call) -> tuple[SamplingTap, bool] | None:
    tap = _current()
    return (tap, tap.begin(call["self"], call["generation_config"])) if tap is not None else None


def _after_processors(token: tuple[SamplingTap, bool] | None, result: Any, call: Call) -> None:
    if token is not None and token[1]:
        result.append(_LastProcessor(token[0]))


def _after_criteria(token: Any, result: Any, call: Call) -> None:
    tap = _current()
    if tap is not None and tap.refused is None:
        result.append(_NeverStops(tap))


def attach(attachment: Attachment) -> None:
    """Observe the two places where ``generate`` prepares its processors and criteria."""
    attachment.observe("GenerationMixin.generate", before=_before_generate)
    attachment.observe("GenerationMixin._get_logits_processor", before=_before_processors, after=_after_processors)
    attachment.observe("GenerationMixin._get_stopping_criteria", after=_after_criteria)
