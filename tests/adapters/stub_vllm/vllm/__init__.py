"""A stand-in for vLLM's offline engine, just enough to drive TRL's real colocate code on a CPU.

The engine holds its own copy of the model (bfloat16 unless STUB_VLLM_DTYPE says otherwise), samples each prompt alone, token by
token, with a generator of its own, and returns the log-probabilities of the distribution it drew from.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

__version__ = "0.30.0"


class SamplingParams:
    def __init__(self, **settings: Any) -> None:
        self.__dict__.update(settings)


class Logprob(NamedTuple):
    logprob: float
    rank: int = 1


class CompletionOutput(NamedTuple):
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]]


class RequestOutput(NamedTuple):
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]


class LLM:
    def __init__(self, model: str, max_model_len: int | None = None, seed: int = 0, **settings: Any) -> None:
        from transformers import AutoModelForCausalLM

        dtype = getattr(torch, os.environ.get("STUB_VLLM_DTYPE", "bfloat16"))
        assert settings["logprobs_mode"] == "processed_logprobs"
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
        self.model.load_weights = self._load_weights
        self.generator = torch.Generator().manual_seed(seed)
        self.calls = 0
        runner = SimpleNamespace(model=self.model)
        self.llm_engine = SimpleNamespace(
            model_config=SimpleNamespace(dtype=dtype, max_model_len=max_model_len or 512, quantization=None),
            model_executor=SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner)),
        )

    @torch.no_grad()
    def _load_weights(self, weights: list[tuple[str, Any]]) -> None:
        own = dict(self.model.named_parameters())
        for name, value in weights:
            own[name].copy_(value)

    def reset_prefix_cache(self) -> None:
        pass

    def generate(self, prompts: list[dict[str, Any]], sampling_params: SamplingParams, use_tqdm: bool = False) -> list[RequestOutput]:
        self.calls += 1
        outputs = [self._one(prompt["prompt_token_ids"], sampling_params) for prompt in prompts]
        if self.calls == 1:  # an engine that could not score a token
            token, _ = next(iter(outputs[1].outputs[0].logprobs[2].items()))
            outputs[1].outputs[0].logprobs[2] = {token: Logprob(float("nan"))}
        return outputs

    @torch.no_grad()
    def _one(self, prompt: list[int], settings: SamplingParams) -> RequestOutput:
        ids, cache, tokens, logprobs = torch.tensor([prompt]), None, [], []
        ends = self.model.generation_config.eos_token_id
        while len(tokens) < settings.max_tokens and not (tokens and tokens[-1] in ([ends] if isinstance(ends, int) else ends)):
            output = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            processed = torch.log_softmax(output.logits[0, -1].float() / settings.temperature, -1)
            token = int(torch.multinomial(processed.exp(), 1, generator=self.generator))
            tokens.append(token)
            logprobs.append({token: Logprob(float(processed[token]))})
            ids = torch.tensor([[token]])
        return RequestOutput(prompt, [CompletionOutput(tokens, logprobs)])
