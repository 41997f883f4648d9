"""A user's training script: three GRPO steps of a tiny mixture of experts. Knows nothing of rlaudit and runs on TRL 0.24 and later."""

import sys
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from tests.adapters.tiny_model import QUESTIONS, save_tiny_model, weights_digest


def reward(completions, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    return [text.count("e") / 10.0 - len(text) / 50.0 for text in texts]


torch.set_num_threads(1)
folder = Path(sys.argv[1])
model = save_tiny_model(folder / "model")
config = GRPOConfig(
    output_dir=str(folder / "output"),
    use_cpu=True,
    bf16=False,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    steps_per_generation=4,
    num_generations=4,
    max_completion_length=12,
    max_steps=4,
    learning_rate=1e-3,
    beta=0.05,
    logging_steps=1,
    report_to="none",
    save_strategy="no",
    seed=0,
    model_init_kwargs={"dtype": "float32"},
    disable_tqdm=True,
)
trainer = GRPOTrainer(
    model=str(model),
    reward_funcs=reward,
    args=config,
    train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": question}] for question in QUESTIONS * 4]}),
    processing_class=AutoTokenizer.from_pretrained(model),
)
trainer.train()
print("weights", weights_digest(trainer.model))
