"""What recording a batch costs, beside a fresh copy of the same arrays and beside torch.save of them, in one run.

    OMP_NUM_THREADS=1 python benchmarks/capture.py [--sequences 64] [--tokens 8192]

The batch is what an RL step of a 48-layer, 128-expert, top-8 model holds: int64 tokens and mask, two float32
log-probability arrays of random noise, int32 routing. Needs torch. Times are the best of several rounds, since other work on the
machine only ever adds; CPU seconds are the operating system's account of whole child processes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LAYERS, TOP_K, EXPERTS, VOCABULARY = 48, 8, 128, 151_936
ROUNDS = 3


def make_batch(sequences: int, tokens: int, routing: bool = True) -> dict[str, Any]:
    """The arrays of one step, from a fixed generator. Expert ids of one token and layer are distinct, as a router's are."""
    import torch

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    shape = (sequences, tokens)
    rollout = -torch.exp(torch.randn(shape, generator=generator) * 2.5 - 3)
    batch = {
        # Token frequencies of text are heavy-tailed (Zipf): uniform ones would be harder to compress than any real text.
        "tokens": (VOCABULARY * torch.rand(shape, generator=generator) ** 6).long(),
        "rollout": rollout,
        "trainer": rollout + torch.randn(shape, generator=generator) * 0.01,
        "mask": torch.ones(shape, dtype=torch.int64),
    }
    if routing:
        batch["routing"] = distinct_experts(shape, generator)
    return batch


def distinct_experts(shape: tuple[int, int], generator: Any) -> Any:
    """Uniformly random sets of TOP_K distinct expert ids for each token and layer (Floyd's algorithm), int32."""
    import torch

    chosen = torch.empty((*shape, LAYERS, TOP_K), dtype=torch.int32)
    for slot in range(TOP_K):
        last = EXPERTS - TOP_K + slot
        drawn = torch.randint(0, last + 1, (*shape, LAYERS), generator=generator, dtype=torch.int32)
        taken = torch.zeros((*shape, LAYERS), dtype=torch.bool)
        for earlier in range(slot):
            taken |= chosen[..., earlier] == drawn
        chosen[..., slot] = torch.where(taken, last, drawn)
    return chosen


def record(sink: Any, batch: dict[str, Any], step: int) -> float:
    """Seconds on the calling thread to record one batch."""
    from rlaudit.recording import Padded

    sequences = batch["tokens"].shape[0]
    ids = [f"{step}-{row}" for row in range(sequences)]
    prompts = [[1, 2, 3]] * sequences
    began = time.perf_counter()
    sink.record_rollout(
        step=step,
        sequence_ids=ids,
        prompt_tokens=prompts,
        response_tokens=Padded(batch["tokens"], batch["mask"]),
        logprobs=Padded(batch["rollout"], batch["mask"]),
        loss_mask=Padded(batch["mask"], batch["mask"]),
        policy_updates=step,
    )
    sink.record_scores(step=step, sequence_ids=ids, source="trainer", logprobs=Padded(batch["trainer"], batch["mask"]), policy_updates=step)
    if "routing" in batch:
        sink.record_routing(
            step=step,
            sequence_ids=ids,
            source="rollout",
            experts=Padded(batch["routing"], batch["mask"]),
            num_experts=EXPERTS,
            layer_ids=range(LAYERS),
        )
    return time.perf_counter() - began


def open_sink(folder: Path, **options: Any) -> Any:
    """A recorder as a captured process has it, writing into a new run in ``folder``."""
    from rlaudit import schema
    from rlaudit.capture.config import CaptureConfig
    from rlaudit.capture.hooks import HookLog
    from rlaudit.capture.recorder import Recorder
    from rlaudit.capture.sink import RecorderSink
    from rlaudit.manifest import Manifest

    folder.mkdir(parents=True, exist_ok=True)
    Manifest(run_id="benchmark").write(folder)
    tables = tuple(table.name for table in schema.TABLES)
    return RecorderSink(Recorder(CaptureConfig(run=str(folder), run_id="benchmark", tables=tables, **options), HookLog()))


def measure_thread(sequences: int, tokens: int, folder: Path) -> dict[str, float]:
    """Seconds on the training thread: recording, a fresh copy, torch.save."""
    import torch

    batch = make_batch(sequences, tokens)
    copies, records, saves = [], [], []
    for number in range(ROUNDS):
        began = time.perf_counter()
        fresh = {name: value.clone() for name, value in batch.items()}
        copies.append(time.perf_counter() - began)
        del fresh
        sink = open_sink(folder / f"thread{number}")
        records.append(record(sink, batch, 0))
        sink.recorder.close()
        shutil.rmtree(folder / f"thread{number}")
        began = time.perf_counter()
        torch.save(batch, folder / "batch.pt")
        saves.append(time.perf_counter() - began)
        (folder / "batch.pt").unlink()
    return {"copy": min(copies), "record": min(records), "save": min(saves)}


def child_make(sequences: int, tokens: int, folder: Path) -> None:
    make_batch(sequences, tokens)


def child_record(sequences: int, tokens: int, folder: Path) -> None:
    sink = open_sink(folder)
    record(sink, make_batch(sequences, tokens), 0)
    sink.recorder.close()


def child_convert(sequences: int, tokens: int, folder: Path) -> None:
    from rlaudit.capture.conversion import convert_leftovers

    convert_leftovers(folder)


def child_save(sequences: int, tokens: int, folder: Path) -> None:
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    torch.save(make_batch(sequences, tokens), folder / "batch.pt")


def child_slow(sequences: int, tokens: int, folder: Path) -> None:
    """A producer that is faster than its writer: peak memory above the producer's own, and what was dropped."""
    from rlaudit.spool import SpoolFile

    limit = 64 << 20
    batch = make_batch(4, tokens)
    sink = open_sink(folder, queue_bytes=limit)
    append = SpoolFile.append

    def slow(self: SpoolFile, frame: Any) -> None:
        time.sleep(0.2)
        append(self, frame)

    SpoolFile.append = slow  # type: ignore[method-assign]
    before = _rss()
    peak = 0
    for step in range(40):
        record(sink, batch, step)
        peak = max(peak, _rss() - before)
    dropped = sum(count for reasons in sink.recorder.dropped.values() for count in reasons.values())
    written = sum(sink.recorder.rows.values())
    print(json.dumps({"limit": limit, "peak": peak, "dropped": dropped, "written": written}))
    os._exit(0)


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run_child(name: str, sequences: int, tokens: int, folder: Path) -> tuple[float, str]:
    """User plus system seconds of a whole child process, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, __file__, "--child", name, "--sequences", str(sequences), "--tokens", str(tokens), "--folder", str(folder)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def verdict(label: str, value: float, bound: float, unit: str = "") -> bool:
    """Print one line of the result; True where the bound holds."""
    holds = value <= bound
    print(f"  {label:<64}{value:>9.3f}{unit}   bound {bound:g}{unit}   {'holds' if holds else 'EXCEEDED'}")
    return holds


def report_sizes(sequences: int, tokens: int, folder: Path, saved: int) -> bool:
    """Bytes on disk of the converted run against torch.save's and the raw data."""
    count = sequences * tokens
    size = {table: sum(p.stat().st_size for p in (folder / table).glob("*.parquet")) for table in ("sequences", "scores", "routing")}
    raw = count * LAYERS * TOP_K
    print(f"disk, {count:,} tokens: " + ", ".join(f"{table} {size[table] / 1e6:.1f} MB" for table in size))
    return all(
        [
            verdict("all tables / torch.save", sum(size.values()) / saved, 0.5),
            verdict("bytes a token without routing", (size["sequences"] + size["scores"]) / count, 9.5),
            verdict("routing / raw uint8 routing", size["routing"] / raw, 0.9),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--child")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.child:
        globals()[f"child_{options.child}"](options.sequences, options.tokens, options.folder)
        return 0
    with tempfile.TemporaryDirectory(prefix="rlaudit-benchmark-") as temporary:
        folder = Path(temporary)
        times = measure_thread(options.sequences, options.tokens, folder)
        print(
            f"training thread, {options.sequences} x {options.tokens} tokens: "
            + ", ".join(f"{what} {seconds:.3f} s" for what, seconds in times.items())
        )
        holds = [
            verdict("record / fresh copy", times["record"] / times["copy"], 1.0),
            verdict("record / torch.save", times["record"] / times["save"], 0.25),
        ]
        cpu = {name: run_child(name, options.sequences, options.tokens, folder / name)[0] for name in ("make", "record", "save")}
        convert, _ = run_child("convert", options.sequences, options.tokens, folder / "record")
        print(
            f"CPU seconds of whole processes, making the batch ({cpu['make']:.2f} s) subtracted: "
            f"record with writer {cpu['record'] - cpu['make']:.2f}, "
            f"conversion to Parquet in the launcher {convert:.2f} (with start-up), torch.save {cpu['save'] - cpu['make']:.2f}"
        )
        holds.append(report_sizes(options.sequences, options.tokens, folder / "record", (folder / "save" / "batch.pt").stat().st_size))
        slow = json.loads(run_child("slow", options.sequences, options.tokens, folder / "slow")[1])
        print(
            f"slow writer, queue limit {slow['limit'] / 1e6:.0f} MB: {slow['written']} rows written, {slow['dropped']} dropped and counted"
        )
        # Beside the queue: the batch being written, laid out in frames of 32 MiB, and the one that is copied before it is refused.
        holds.append(
            verdict(
                "peak memory above the producer's own / (limit + one batch + frame)",
                slow["peak"] / (slow["limit"] + (16 << 20) + (64 << 20)),
                1.0,
            )
        )
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
