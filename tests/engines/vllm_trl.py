"""Three GRPO steps of TRL with vLLM in the same process, weights synchronised before each. Arguments: model, folder, "repacked" or "as-is".

vLLM for CPUs packs weights for its kernels, so that linear layers lose what loading needs: they are kept plain here. Experts that were
loaded stay unpacked, which the kernel does not notice; "repacked" packs them after each synchronisation.
"""

import functools
import os
import sys

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", WANDB_MODE="disabled")
import torch
import vllm.model_executor.layers.utils as layers
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.generation import vllm_generation
from vllm._custom_ops import cpu_prepack_moe_weight

model, folder, mode = sys.argv[1:4]


def plain(layer, remove_weight):
    layer.cpu_linear = torch.nn.functional.linear


layers.dispatch_cpu_unquantized_gemm = plain
vllm_generation.LLM = functools.partial(vllm_generation.LLM, enforce_eager=True, kv_cache_memory_bytes=64 << 20)
synchronise = vllm_generation.VLLMGeneration.sync_weights


def synchronised_and_packed(self):
    synchronise(self)
    for module in self.llm.llm_engine.model_executor.driver_worker.model_runner.model.modules():
        for name in ("w13_weight", "w2_weight"):
            if hasattr(module, name):
                weight = getattr(module, name)
                weight.data.copy_(cpu_prepack_moe_weight(weight.data.clone(), "vec").reshape(weight.shape))


if mode == "repacked":
    vllm_generation.VLLMGeneration.sync_weights = synchronised_and_packed


def different_characters(completions, **others):
    return [float(len(set(completion))) for completion in completions]


trainer = GRPOTrainer(
    model=model,
    reward_funcs=different_characters,
    train_dataset=Dataset.from_dict({"prompt": ["the quick brown fox", "def f(x): return", "the lazy dog", "over 17 times"] * 4}),
    processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
    args=GRPOConfig(
        output_dir=folder,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_max_model_length=64,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=16,
        max_steps=3,
        logging_steps=1,
        learning_rate=1e-3,
        beta=0.0,
        report_to=[],
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        dataloader_pin_memory=False,
        model_init_kwargs={"dtype": "float32"},
    ),
)
trainer.train()
