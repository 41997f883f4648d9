"""Two gloo ranks train a tiny Qwen3-MoE with FSDP2 or DDP on their own samples, with and without a routing window.

    python sharded_routing.py FOLDER

Writes RANK-KIND.pt for each kind: the routed experts that the window saw, those of the unsharded model on the same samples, and the
weights after two steps with the window and without.
"""

import os
import socket
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, AutoModelForCausalLM

from rlaudit.capture.models.routing import routing_window

ROWS, WIDTH, STEPS = 3, 10, 2


def tiny() -> Any:
    torch.manual_seed(7)
    config = AutoConfig.for_model(
        "qwen3_moe", vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=24, mlp_only_layers=[1],
        initializer_range=0.3,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config)


def wrapped(kind: str, mesh: Any) -> Any:
    model = tiny()
    if kind == "ddp":
        return DistributedDataParallel(model, find_unused_parameters=True)  # experts that no token chose
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(model: Any, batches: Any, captured: bool) -> tuple[list[Any], list[Any]]:
    """Two optimizer steps: the experts seen at each, and the weights at the end (this rank's shards under FSDP2)."""
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.05), []
    for ids in batches:
        if captured:
            with routing_window(model) as window:
                out = model(input_ids=ids, labels=ids)
            seen.append(window.forwarded(WIDTH))
        else:
            out = model(input_ids=ids, labels=ids)
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return seen, [(p.to_local() if isinstance(p, DTensor) else p).detach().clone() for p in model.parameters()]


def work(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    generator = torch.Generator().manual_seed(100 + rank)
    batches = torch.randint(2, 90, (STEPS, ROWS, WIDTH), generator=generator)
    with torch.no_grad(), routing_window(alone := tiny()) as window:
        alone(input_ids=batches[0])
    expected = window.forwarded(WIDTH)
    for kind in ("fsdp2", "ddp"):
        seen, weights = train(wrapped(kind, mesh), batches, captured=True)
        _, uncaptured = train(wrapped(kind, mesh), batches, captured=False)
        torch.save({"seen": [tuple(s) for s in seen], "expected": tuple(expected), "weights": (weights, uncaptured)},
                   Path(folder, f"{rank}-{kind}.pt"))  # fmt: skip
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    mp.spawn(work, (free, sys.argv[1]), nprocs=2)
