"""The trainer: GRPO with FSDP2, started by torchrun. Rank 0 samples for all; every rank trains on its share of the sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import options as command_line
import records
import torch
import torch.distributed as dist
from engine import Engine
from rollout import Sample, sample_step
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoTokenizer, Qwen3MoeForCausalLM

import rlaudit
from replay import forced_experts
from rlaudit.capture.models.routing import routing_window

CLIP = 0.2


def main() -> None:
    options = command_line.parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = Qwen3MoeForCausalLM.from_pretrained(options.model, dtype=getattr(torch, options.dtype))
    config = model.config
    whole = Qwen3MoeForCausalLM.from_pretrained(options.model, dtype=getattr(torch, options.dtype)) if rank == 0 else None
    shard(model, world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.0)
    engine = Engine(options.url)
    for step in range(options.steps):
        box: list[Any] = [None]
        if rank == 0:
            box = [sample_step(step, engine, tokenizer, config, options)]
            records.rollout(step, box[0], config, options, updates=step, syncs=0 if options.no_sync else step)
        dist.broadcast_object_list(box)
        loss = train_step(step, model, optimizer, box[0], rank, world, options)
        send_weights(step + 1, model, whole, tokenizer, engine, options)
        if rank == 0:
            mean_reward = sum(sample.reward for sample in box[0]) / len(box[0])
            print(f"step {step}: reward {mean_reward:.3f}, loss {loss:+.5f}", flush=True)
            rlaudit.record_metrics(step=step, framework="sglang_fsdp", values={"reward": mean_reward, "loss": loss})
        rlaudit.step(step)
    dist.destroy_process_group()


def shard(model: Any, world: int) -> None:
    """FSDP2: a unit for each layer and one for the rest."""
    mesh = init_device_mesh("cpu", (world,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for unit in [*model.model.layers, model]:
        unit.set_force_sum_reduction_for_comms(True)  # gloo knows no mean


def train_step(step: int, model: Any, optimizer: Any, samples: list[Sample], rank: int, world: int, options: Any) -> float:
    """Recompute, then one update. Returns the loss, summed over ranks."""
    tokens_of_all = sum(sum(sample.sampled) for sample in samples)
    mine = samples[rank::world]
    batch = padded(mine)
    experts = engine_experts(mine, batch["input_ids"].shape[1]) if options.replay_routing else None
    with torch.no_grad():
        evaluate(step, "trainer", model, mine, batch, experts, options)
    logprobs = evaluate(step, "update", model, mine, batch, experts, options)
    loss = torch.zeros(())
    for sample, new in zip(mine, logprobs, strict=True):
        mask = torch.tensor(sample.sampled)
        old = torch.tensor([0.0 if value is None else value for value in sample.logprobs])
        ratio = torch.exp(new - old)[mask]
        loss = loss - torch.minimum(ratio * sample.advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * sample.advantage).sum()
    loss = loss / tokens_of_all
    (loss * world).backward()  # FSDP takes the mean over ranks
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    total = loss.detach()
    dist.all_reduce(total)
    return float(total)


def evaluate(step: int, source: str, model: Any, samples: list[Sample], batch: Any, experts: Any, options: Any) -> list[torch.Tensor]:
    """Log-probabilities of the response tokens at the sampling temperature, one tensor a sample; recorded under ``source``."""
    width = batch["input_ids"].shape[1]
    with forced_experts(model, experts), routing_window(model) as window:
        logits = model(**batch, use_cache=False).logits.float() / options.temperature
    every = torch.log_softmax(logits[:, :-1], -1).gather(-1, batch["input_ids"][:, 1:, None]).squeeze(-1)
    logprobs = [
        row[len(sample.prompt) - 1 : len(sample.prompt) + len(sample.response) - 1] for row, sample in zip(every, samples, strict=True)
    ]
    records.scores(step, source, samples, [row.detach() for row in logprobs], window, options, step, width)
    return logprobs


def padded(samples: list[Sample]) -> dict[str, torch.Tensor]:
    """Prompt and response of each sample, padded on the right."""
    rows = [torch.tensor(sample.prompt + sample.response) for sample in samples]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long()}


def engine_experts(samples: list[Sample], width: int) -> torch.Tensor:
    """(B, W, L, k); -1 where the engine routed nothing: the last sampled token, and padding."""
    layers, top_k = samples[0].experts.shape[1:]
    experts = torch.full((len(samples), width, layers, top_k), -1)
    for row, sample in zip(experts, samples, strict=True):
        row[: len(sample.experts)] = torch.tensor(sample.experts)
    return experts


def send_weights(version: int, model: Any, whole: Any, tokenizer: Any, engine: Engine, options: Any) -> None:
    """Gather the shards on rank 0, write them as a checkpoint, and let the engine load it."""
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        label = f"step-{version}"
        folder = Path(options.work) / "weights" / label
        whole.load_state_dict(state)
        whole.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        rlaudit.record_weights(fact="sent", policy_version=label, policy_updates=version, policy_syncs=version)
        if not options.no_sync:  # a fault to try: the engine goes on with its first weights
            engine.load_weights(folder, label)
            rlaudit.record_weights(
                fact="received", policy_version=engine.weight_version(), policy_updates=version, policy_syncs=version,
                engine_id=records.ENGINE,
            )  # fmt: skip
    dist.barrier()


if __name__ == "__main__":
    main()
