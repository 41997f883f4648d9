"""Sampling log-probabilities are those of the drawn tokens, after every processor, and reading them changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers.generation.utils

from rlaudit.capture.engines import transformers_generate as engine
from rlaudit.capture.hooks import Attachment, HookLog

from .moe_families import left_padded, tiny_model

UTILS = transformers.generation.utils
SAMPLING = {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1}


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("qwen3", head_dim=8)


@pytest.fixture()
def attachment() -> Iterator[Attachment]:
    attachment = Attachment(engine.ADAPTER, UTILS, HookLog())
    engine.attach(attachment)
    yield attachment
    attachment.detach()
    assert attachment.log.failures == {}


def generate(model: Any, seed: int = 1, **settings: Any) -> Any:
    ids, mask = (tensor.to(model.device) for tensor in left_padded())
    torch.manual_seed(seed)
    return model.generate(
        ids, attention_mask=mask, **{"max_new_tokens": 8, "return_dict_in_generate": True, "output_scores": True, **settings}
    )


def test_logprobs_are_those_of_the_drawn_tokens_after_temperature_truncation_and_penalty(model: Any, attachment: Attachment) -> None:
    tap = engine.open_tap()
    output = generate(model, **SAMPLING)
    engine.close_tap(tap)
    sampled = tap.result()
    assert sampled is not None
    drawn = output.sequences[:, 9:]
    assert torch.equal(sampled.tokens, drawn)
    for step, scores in enumerate(output.scores):
        expected = torch.log_softmax(scores.float(), -1).gather(-1, drawn[:, step : step + 1]).squeeze(-1)
        assert torch.equal(sampled.logprobs[:, step], expected)
    assert sampled.prompt_width == 9
    assert sampled.parameters == (0.7, 0.9, 20, 0.0, 1.1)


def test_greedy_is_recorded_as_temperature_zero(model: Any, attachment: Attachment) -> None:
    tap = engine.open_tap()
    generate(model, do_sample=False)
    engine.close_tap(tap)
    assert tap.result().parameters.temperature == 0.0


def test_reading_changes_no_token_no_score_and_no_generator_state(model: Any) -> None:
    plain = generate(model, **SAMPLING)
    state = torch.random.get_rng_state()
    attachment = Attachment(engine.ADAPTER, UTILS, HookLog())
    engine.attach(attachment)
    tap = engine.open_tap()
    watched = generate(model, **SAMPLING)
    engine.close_tap(tap)
    attachment.detach()
    assert torch.equal(plain.sequences, watched.sequences)
    assert all(torch.equal(a, b) for a, b in zip(plain.scores, watched.scores, strict=True))
    assert torch.equal(state, torch.random.get_rng_state())


def test_static_cache_is_chosen_as_without_a_tap(model: Any, attachment: Attachment) -> None:
    plain = generate(model, cache_implementation="static", **SAMPLING)
    tap = engine.open_tap()
    watched = generate(model, cache_implementation="static", **SAMPLING)
    engine.close_tap(tap)
    assert type(plain.past_key_values) is type(watched.past_key_values)
    assert torch.equal(plain.sequences, watched.sequences)
    assert torch.equal(tap.result().tokens, watched.sequences[:, 9:])


def test_nothing_is_added_where_no_tap_is_open(model: Any, attachment: Attachment) -> None:
    processors = model._get_logits_processor(model.generation_config, logits_processor=None)
    assert not any(isinstance(processor, engine._LastProcessor) for processor in processors)


def test_assisted_decoding_is_left_alone_and_says_so(model: Any, attachment: Attachment) -> None:
    ids, mask = left_padded((5,))
    tap = engine.open_tap()
    model.generate(ids, attention_mask=mask, max_new_tokens=4, prompt_lookup_num_tokens=2)
    engine.close_tap(tap)
    assert tap.result() is None
    assert tap.refused == "generation mode assisted_generation is not read"


def test_an_assistant_model_is_left_alone_too(model: Any, attachment: Attachment) -> None:
    ids, mask = left_padded((5,))
    tap = engine.open_tap()
    model.generate(ids, attention_mask=mask, max_new_tokens=4, assistant_model=model)
    engine.close_tap(tap)
    assert tap.refused == "assisted decoding is not read"


def test_beam_search_is_left_alone(model: Any, attachment: Attachment) -> None:
    tap = engine.open_tap()
    generate(model, num_beams=2, do_sample=False)
    engine.close_tap(tap)
    assert tap.refused == "generation mode beam_search is not read"


def test_a_second_generate_call_in_one_window_gives_no_numbers_because_rows_could_not_be_told_apart(
    model: Any, attachment: Attachment
) -> None:
    tap = engine.open_tap()
    generate(model, **SAMPLING)
    generate(model, **SAMPLING)
    engine.close_tap(tap)
    assert tap.result() is None


def test_processors_that_a_model_adds_after_the_mixin_are_not_mistaken_for_the_sampler(attachment: Attachment) -> None:
    model = tiny_model("qwen3", head_dim=8)

    class Extended(type(model)):  # type: ignore[misc]
        def _get_logits_processor(self, *args: Any, **kwargs: Any) -> Any:
            return super()._get_logits_processor(*args, **kwargs)

    model.__class__ = Extended
    tap = engine.open_tap()
    generate(model, **SAMPLING)
    engine.close_tap(tap)
    assert tap.refused == "Extended adds processors of its own after everything else"


def test_no_scores_are_held_once_the_tap_is_closed(model: Any, attachment: Attachment) -> None:
    tap = engine.open_tap()
    generate(model, **SAMPLING)
    engine.close_tap(tap)
    assert tap._scores_BV is None


def test_detaching_restores_the_originals() -> None:
    mixin = UTILS.GenerationMixin
    names = [target.path.split(".")[1] for target in engine.ADAPTER.targets]
    originals = [vars(mixin)[name] for name in names]
    attachment = Attachment(engine.ADAPTER, UTILS, HookLog())
    engine.attach(attachment)
    assert all(vars(mixin)[name] is not original for name, original in zip(names, originals, strict=True))
    attachment.detach()
    assert all(vars(mixin)[name] is original for name, original in zip(names, originals, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device: copies to pinned memory are not exercised")
def test_logprobs_copied_from_a_device_without_waiting_are_those_of_the_scores(attachment: Attachment) -> None:
    tap = engine.open_tap()
    output = generate(tiny_model("qwen3", head_dim=8).cuda(), **SAMPLING)
    engine.close_tap(tap)
    sampled = tap.result()
    assert sampled is not None
    assert torch.equal(sampled.tokens, output.sequences[:, 9:].cpu())
    for step, scores in enumerate(output.scores):
        expected = torch.log_softmax(scores.float(), -1).gather(-1, output.sequences[:, 9 + step : 10 + step]).squeeze(-1)
        assert torch.equal(sampled.logprobs[:, step], expected.cpu())
