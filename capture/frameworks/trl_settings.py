"""How a TRL trainer samples and computes: sampling parameters, dtypes and policy versions, across TRL's versions."""

from __future__ import annotations

import weakref
from collections import Counter
from pathlib import Path
from typing import Any

from rlaudit.capture.engines.transformers_generate import SamplingParameters, sampling_parameters
from rlaudit.capture.models.host import torch


def engine_name(trainer: Any) -> str:
    """What generates: vllm, transformers.generate, transformers.continuous_batching or rollout_func."""
    if getattr(trainer, "rollout_func", None) is not None:
        return "rollout_func"
    if getattr(trainer, "use_vllm", False):
        return "vllm"
    if getattr(trainer, "use_transformers_continuous_batching", False) or getattr(trainer, "use_transformers_paged", False):
        return "transformers.continuous_batching"
    return "transformers.generate"


def sampling(trainer: Any) -> SamplingParameters:
    """Sampling parameters as TRL hands them to the engine, user's ``generation_kwargs`` included."""
    config = getattr(trainer, "generation_config", None)
    if config is not None and not getattr(trainer, "use_vllm", False):
        return sampling_parameters(config)
    source = getattr(trainer, "vllm_generation", None) or trainer
    extra = getattr(source, "generation_kwargs", None) or getattr(trainer.args, "generation_kwargs", None) or {}

    def given(name: str, neutral: float) -> float:
        value = extra.get(name, getattr(source, name, None))
        return neutral if value is None else value

    return SamplingParameters(
        float(given("temperature", 1.0)),
        float(given("top_p", 1.0)),
        max(int(given("top_k", 0)), 0),  # vLLM's -1 and 0 both keep every candidate
        float(given("min_p", 0.0)),
        float(given("repetition_penalty", 1.0)),
    )


def engine_logprob_mode(trainer: Any) -> str | None:
    """Semantics of the engine's log-probabilities: processed where TRL starts vLLM itself (it asks for
    ``processed_logprobs``); None for a server and a ``rollout_func``, whose settings are the user's.
    """
    return "processed" if engine_name(trainer) == "vllm" and getattr(trainer, "vllm_mode", None) == "colocate" else None


def engine_dtypes(trainer: Any) -> tuple[str | None, str | None]:
    """Compute and weight dtype of vLLM in this process; None where it runs elsewhere or weights are quantised."""
    llm = getattr(getattr(trainer, "vllm_generation", None) or trainer, "llm", None)
    config = getattr(getattr(llm, "llm_engine", None), "model_config", None)
    name = dtype_name(getattr(config, "dtype", None))
    return name, name if getattr(config, "quantization", None) is None else None


def dtype_name(dtype: Any) -> str | None:
    """A torch dtype's name without the prefix; None for None.

    >>> dtype_name("torch.bfloat16")
    'bfloat16'
    """
    return None if dtype is None else str(dtype).removeprefix("torch.")


_weight_dtypes: weakref.WeakKeyDictionary[Any, tuple[Any, str]] = weakref.WeakKeyDictionary()


def weight_dtype(model: Any) -> str | None:
    """Dtype that most of the model's parameter elements have (adapters and norms may have another); None without parameters.

    Counted once and again when the first parameter's dtype has changed (TRL casts models in place in some modes).
    """
    first = next(iter(model.parameters()), None)
    if first is None:
        return None
    if model not in _weight_dtypes or _weight_dtypes[model][0] != first.dtype:
        _weight_dtypes[model] = (first.dtype, _commonest_dtype(model))
    return _weight_dtypes[model][1]


def _commonest_dtype(model: Any) -> str:
    counts: Counter[str] = Counter()
    for parameter in model.parameters():
        counts[str(parameter.dtype)] += parameter.numel()
    return counts.most_common(1)[0][0].removeprefix("torch.")


def compute_dtype(trainer: Any) -> str | None:
    """Dtype of the trainer's matrix products: autocast's where accelerate has it on, otherwise the weights'."""
    accelerator = trainer.accelerator
    handler = getattr(accelerator, "autocast_handler", None)
    if getattr(accelerator, "native_amp", False) and (handler is None or handler.enabled):
        mixed = {"bf16": "bfloat16", "fp16": "float16"}.get(accelerator.mixed_precision)
        if mixed is not None:
            return mixed
    return weight_dtype(trainer.model)


def policy_updates(trainer: Any) -> int:
    """Optimizer steps behind the weights that sample now: TRL's own count of the last sync with vLLM, otherwise the current step."""
    loaded = getattr(trainer, "_last_loaded_step", None) if getattr(trainer, "use_vllm", False) else None
    return int(trainer.state.global_step if loaded is None else loaded)


def eos_ids(trainer: Any) -> list[int]:
    """Token ids that end a response."""
    ids = getattr(trainer, "eos_token_ids", None)
    return list(ids) if ids is not None else [trainer.eos_token_id] if getattr(trainer, "eos_token_id", None) is not None else []


def is_reference(trainer: Any, model: Any) -> bool:
    """True where a forward of ``model`` would be the reference policy's: TRL's own reference model, or a PEFT model
    with its adapters disabled or with its frozen first adapter (TRL names it ref) active.
    """
    if model is getattr(trainer, "ref_model", None):
        return True
    peft_config = getattr(trainer.model, "peft_config", None)
    if not peft_config:
        return False
    if "ref" in peft_config and getattr(trainer.model, "active_adapter", None) == "ref":
        return True
    return any(getattr(module, "_disable_adapters", False) for module in trainer.model.modules())


def weighted_rewards(trainer: Any, rewards_per_func: Any, rows: int) -> list[float | None]:
    """TRL's reward of this rank's ``rows``: the weighted sum over reward functions, as it logs it (before RLOO's KL penalty and clipping).

    ``rewards_per_func`` (all ranks' rows, functions) as ``_calculate_rewards`` returns it. A row that no function scored is None.
    """
    first = trainer.accelerator.process_index * rows
    local = rewards_per_func[first : first + rows].detach().to("cpu", torch().float32)
    weights = trainer.reward_weights.detach().to("cpu", torch().float32)
    sums = (local * weights[None, :]).nansum(dim=1).tolist()
    unscored = local.isnan().all(dim=1).tolist()
    return [None if missing else value for value, missing in zip(sums, unscored, strict=True)]


def checkpoint_path(trainer: Any, trial: Any) -> Path | None:
    """Folder of the checkpoint that was just saved; None where this rank saves none."""
    path = Path(trainer._get_output_dir(trial=trial), f"checkpoint-{trainer.state.global_step}").absolute()
    return path if path.is_dir() and trainer.args.should_save else None
