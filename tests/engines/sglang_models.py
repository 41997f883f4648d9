"""Make the model ``updated`` beside ``moe``: the same with moved weights, as after training. Argument: folder."""

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

folder = Path(sys.argv[1])
shutil.copytree(folder / "moe", folder / "updated")
torch.manual_seed(1)
weights = load_file(folder / "moe" / "model.safetensors")
moved = {name: (value.float() + 0.02 * torch.randn(value.shape)).to(value.dtype) for name, value in weights.items()}
save_file(moved, folder / "updated" / "model.safetensors", metadata={"format": "pt"})
