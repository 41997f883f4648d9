"""Two gloo ranks under FSDP2, uneven shards: checksums of shards, of replicas and of the unsharded model, as JSON files.

python fsdp_checksums.py FOLDER
"""

import json
import os
import socket
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate

from rlaudit.capture.trainers.checksums import checksum_parameters


def work(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3))  # 5 and 3 rows on two ranks
    whole = {found.name: found.checksum for found in checksum_parameters(model).tensors}
    mesh = init_device_mesh("cpu", (2,))
    replicated = {n: DTensor.from_local(p.detach().clone(), mesh, [Replicate()], run_check=False) for n, p in model.named_parameters()}
    copies = {found.name: found._asdict() for found in checksum_parameters(replicated).tensors}
    partial = checksum_parameters({"p": DTensor.from_local(torch.ones(3), mesh, [Partial()], run_check=False)}).left_out["p"]
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    shards = {found.name: found._asdict() for found in checksum_parameters(model).tensors}
    Path(folder, f"{rank}.json").write_text(json.dumps({"whole": whole, "sharded": shards, "replicated": copies, "partial": partial}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    mp.spawn(work, (free, sys.argv[1]), nprocs=2)
