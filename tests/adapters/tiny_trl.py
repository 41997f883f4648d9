"""Tiny real TRL runs on a CPU: a model and tokenizer in a folder, and one function that trains."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rlaudit.capture.engines import transformers_generate
from rlaudit.capture.frameworks import trl_grpo, trl_rloo, trl_vllm
from rlaudit.capture.hooks import Attachment, HookLog

from .sinks import CollectingSink, collecting
from .tiny_model import QUESTIONS, save_tiny_model, weights_digest

__all__ = ["QUESTIONS", "Run", "attached", "reward_letters", "save_tiny_model", "train"]


def reward_letters(completions: list[Any], **kwargs: Any) -> list[float]:
    """A reward that varies within a group: letters e, less length."""
    texts = [completion[0]["content"] for completion in completions]
    return [text.count("e") / 10.0 - len(text) / 50.0 for text in texts]


class Run(NamedTuple):
    """What a training left: what was recorded, the trainer's log, final weights' digest and generator states' digest."""

    sink: CollectingSink
    log: list[dict[str, Any]]
    weights: str
    generators: str
    hooks: HookLog
    trainer: Any


@contextmanager
def attached() -> Iterator[HookLog]:
    """All adapters attached to the modules of this process, and detached again."""
    import transformers.generation.utils
    import trl.trainer.grpo_trainer
    import trl.trainer.rloo_trainer

    log = HookLog()
    pairs = [
        (transformers_generate, transformers.generation.utils),
        (trl_grpo, trl.trainer.grpo_trainer),
        (trl_rloo, trl.trainer.rloo_trainer),
    ]
    if trl.__version__ >= "1":
        import trl.generation.vllm_generation

        pairs.append((trl_vllm, trl.generation.vllm_generation))
    attachments = []
    for adapter, module in pairs:
        attachment = Attachment(adapter.ADAPTER, module, log)
        adapter.attach(attachment)
        attachments.append(attachment)
    try:
        yield log
    finally:
        for attachment in attachments:
            attachment.detach()


def train(model: Path, output: Path, *, algorithm: str = "grpo", capture: bool = True, trainer_class: Any = None, **settings: Any) -> Run:
    """Train a few steps with TRL's own trainer on one thread; ``settings`` are its config's, and ``tools`` and the like its trainer's."""
    import trl
    from datasets import Dataset
    from transformers import AutoTokenizer

    torch.set_num_threads(1)
    torch.manual_seed(11)
    np.random.seed(11)
    random.seed(11)
    config_class, default_class = {"grpo": (trl.GRPOConfig, trl.GRPOTrainer), "rloo": (trl.RLOOConfig, trl.RLOOTrainer)}[algorithm]
    extra = {name: settings.pop(name) for name in ("tools", "rollout_func", "eval_dataset", "peft_config") if name in settings}
    rewards = settings.pop("reward_funcs", reward_letters)
    tokenizer = AutoTokenizer.from_pretrained(model)
    if "tools" in extra:
        tokenizer.response_schema = {"type": "object"}  # TRL parses responses where one is set; tests replace the parser
    config = config_class(
        output_dir=str(output),
        **{
            "use_cpu": True,
            "bf16": False,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "num_generations": 4,
            "max_completion_length": 12,
            "max_steps": 2,
            "learning_rate": 1e-3,
            "logging_steps": 1,
            "report_to": "none",
            "save_strategy": "no",
            "seed": 0,
            "model_init_kwargs": {"dtype": "float32"},
            "disable_tqdm": True,
            **settings,
        },
    )
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": question}] for question in QUESTIONS * 4]})
    with collecting() as sink:
        log = HookLog()
        if capture:
            with attached() as log:
                trainer = _trained(trainer_class or default_class, model, rewards, config, dataset, tokenizer, extra)
        else:
            trainer = _trained(trainer_class or default_class, model, rewards, config, dataset, tokenizer, extra)
    return Run(sink, trainer.state.log_history, weights_digest(trainer.model), generators_digest(), log, trainer)


def _trained(cls: Any, model: Path, rewards: Any, config: Any, dataset: Any, tokenizer: Any, extra: dict[str, Any]) -> Any:
    trainer = cls(model=str(model), reward_funcs=rewards, args=config, train_dataset=dataset, processing_class=tokenizer, **extra)
    trainer.train()
    return trainer


def generators_digest() -> str:
    """SHA-256 over the states of torch's, NumPy's and Python's global generators."""
    state = np.random.get_state()
    parts = [
        torch.random.get_rng_state().numpy().tobytes(),
        state[1].tobytes() + repr(state[2:]).encode(),
        repr(random.getstate()).encode(),
    ]  # type: ignore[index, union-attr]
    return hashlib.sha256(b"".join(parts)).hexdigest()
