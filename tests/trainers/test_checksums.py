"""Checksums: their definition, what changes them, and that the parts of any split add up to the whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlaudit import Run, recording, schema
from rlaudit.capture.config import CaptureConfig
from rlaudit.capture.conversion import convert_leftovers
from rlaudit.capture.hooks import HookLog
from rlaudit.capture.recorder import Recorder
from rlaudit.capture.sink import RecorderSink
from rlaudit.capture.trainers.checksums import checksum_parameters, record_checksums, sampling_stride
from rlaudit.capture.trainers.shards import Shard
from rlaudit.manifest import Manifest

torch = pytest.importorskip("torch")


def by_hand(values: np.ndarray, stride: int = 1) -> int:
    """The definition in the module's docstring, element by element in Python integers."""
    flat, total, wrap = values.reshape(-1), 0, (1 << 64) - 1
    bits = flat.view({1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}[flat.itemsize])
    for index in range(0, flat.size, stride):
        x = ((index + 1) * 0x9E3779B97F4A7C15 + int(bits[index]) * 0xC2B2AE3D27D4EB4F) & wrap
        x ^= x >> 32
        x = x * 0xD6E8FEB86659FD93 & wrap
        total += x ^ (x >> 29)
    return total & wrap


def checksum(tensor: Any, **options: Any) -> int:
    (found,) = checksum_parameters({"w": tensor}, **options).tensors
    return found.checksum


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "int64"])
def test_the_checksum_is_its_definition(dtype: str) -> None:
    values = (np.random.default_rng(0).normal(size=(7, 13)) * 40).astype(dtype)
    assert checksum(torch.from_numpy(values)) == by_hand(values)


def test_sampling_takes_every_stride_th_element_of_the_whole() -> None:
    values = np.random.default_rng(1).normal(size=(50, 33)).astype(np.float32)
    (found,) = checksum_parameters({"w": torch.from_numpy(values)}, sample_above=100).tensors
    assert found.stride == sampling_stride(1650, 100) == 17
    assert (found.checksum, found.elements, found.elements_of) == (by_hand(values, 17), 98, 98)


def test_long_tensors_are_summed_in_chunks_as_if_in_one() -> None:
    values = np.random.default_rng(2).integers(-(1 << 31), 1 << 31, (1 << 17) + 5).astype(np.int32)
    index = np.arange(1, values.size + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        x = index * np.uint64(0x9E3779B97F4A7C15) + values.astype(np.int64).view(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
        x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
        expected = int((x ^ (x >> np.uint64(29))).sum(dtype=np.uint64))
    assert checksum(torch.from_numpy(values)) == expected


def test_a_permutation_changes_it_and_so_does_one_bit() -> None:
    tensor = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    flipped = tensor.clone()
    flipped.view(torch.int32)[2, 3] ^= 1
    found = [checksum(t) for t in (tensor, tensor[[1, 0, 2, 3]], tensor[:, [1, 0, 2, 3, 4, 5]], tensor.flip(0, 1), flipped)]
    assert len(set(found)) == len(found)


def test_bits_are_read_after_the_cast_that_was_asked_for() -> None:
    tensor = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    (found,) = checksum_parameters({"w": tensor}, as_dtype=torch.bfloat16).tensors
    assert found.dtype == "bfloat16"
    assert found.checksum == by_hand(tensor.bfloat16().view(torch.int16).numpy())
    assert found.checksum != checksum(tensor)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 6), st.integers(1, 7), st.integers(1, 5)),
    cuts=st.tuples(*[st.lists(st.integers(0, 7), max_size=2)] * 3),
    sample_above=st.sampled_from([None, 1, 7, 40]),
)
def test_the_parts_of_any_split_add_up(shape: tuple[int, ...], cuts: tuple[list[int], ...], sample_above: int | None) -> None:
    whole = torch.from_numpy(np.random.default_rng(3).normal(size=shape).astype(np.float32))
    edges = [sorted({0, size, *(min(cut, size) for cut in cut_list)}) for size, cut_list in zip(shape, cuts, strict=True)]
    parts = {}
    for i, j, k in np.ndindex(*(len(edge) - 1 for edge in edges)):
        box = tuple(slice(edge[at], edge[at + 1]) for edge, at in zip(edges, (i, j, k), strict=True))
        parts[f"{i}{j}{k}"] = Shard(whole[box], tuple(s.start for s in box), shape)
    found = checksum_parameters(parts, sample_above=sample_above).tensors
    (expected,) = checksum_parameters({"w": whole}, sample_above=sample_above).tensors
    assert sum(part.checksum for part in found) % (1 << 64) == expected.checksum
    assert sum(part.elements for part in found) == expected.elements == expected.elements_of


@pytest.mark.parametrize(("width", "sample_above"), [(600, None), (600, 5000), (40_000, None), (40_000, 5000)])
def test_column_shards_of_short_and_long_rows_add_up(width: int, sample_above: int | None) -> None:
    whole = torch.from_numpy(np.random.default_rng(4).normal(size=(150 if width == 600 else 3, width)).astype(np.float16))
    cut = width * 2 // 3
    parts = {"l": Shard(whole[:, :cut], (0, 0), tuple(whole.shape)), "r": Shard(whole[:, cut:], (0, cut), tuple(whole.shape))}
    found = checksum_parameters(parts, sample_above=sample_above).tensors
    (expected,) = checksum_parameters({"w": whole}, sample_above=sample_above).tensors
    assert expected.checksum == by_hand(whole.numpy(), expected.stride)
    assert sum(part.checksum for part in found) % (1 << 64) == expected.checksum
    assert sum(part.elements for part in found) == expected.elements == expected.elements_of


def test_what_has_no_checksum_is_named_with_its_reason() -> None:
    found = checksum_parameters(
        {"meta": torch.empty(3, device="meta"), "beyond": Shard(torch.zeros(4), (2,), (5,)), "wide": torch.zeros(2, dtype=torch.complex128)}
    )
    assert found.tensors == ()
    assert {name: reason.split()[0] for name, reason in found.left_out.items()} == {"meta": "it", "beyond": "a", "wide": "its"}


def test_no_tensor_is_begun_after_the_budget() -> None:
    found = checksum_parameters({f"w{i}": torch.zeros(100_000) for i in range(5)}, budget_seconds=0.0)
    assert found.tensors == ()
    assert list(found.left_out) == [f"w{i}" for i in range(5)]


def test_nothing_of_the_model_or_the_random_state_changes() -> None:
    model = torch.nn.Linear(9, 5)
    before, state = [p.clone() for p in model.parameters()], torch.get_rng_state()
    checksum_parameters(model, as_dtype=torch.bfloat16)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())


def test_recorded_parts_are_added_up_by_the_view_and_a_missing_part_is_no_sum(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    Manifest(run_id="test-run").write(folder)
    config = CaptureConfig(run=str(folder), run_id="test-run", tables=tuple(table.name for table in schema.TABLES))
    sink = RecorderSink(Recorder(config, HookLog()))
    whole = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    recording.set_sink(sink)
    try:
        for rows in (slice(0, 5), slice(5, 6)):  # two ranks, unevenly
            parts = {"a": Shard(whole[rows], (rows.start, 0), (6, 4)), "b": Shard(whole[rows], (rows.start, 0), (6, 4))}
            found = checksum_parameters(parts if rows.start == 0 else {"a": parts["a"]})
            record_checksums(found, fact="sent", policy_version="v1", policy_syncs=1)
        record_checksums(checksum_parameters({"m": torch.empty(1, device="meta")}), fact="sent")
    finally:
        recording.set_sink(None)
    sink.recorder.close()
    convert_leftovers(folder)
    connection = Run.open(folder).connect()
    rows = connection.execute(
        "select tensor, checksum, elements, elements_of, parts, policy_version, policy_syncs from weight_checksums order by tensor"
    ).fetchall()
    assert rows == [("a", f"{by_hand(whole.numpy()):016x}", 24, 24, 2, "v1", 1), ("b", None, 20, 24, 1, "v1", 1)]
    ((detail,),) = connection.execute("select detail from events where kind = 'checksums_left_out'").fetchall()
    assert json.loads(detail) == {"m": "it has no data"}


def test_two_fsdp2_ranks_add_up_to_the_unsharded_checksums_bit_for_bit(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("fsdp_checksums.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert len(ranks[0]["whole"]) == 4
    for name, expected in ranks[0]["whole"].items():
        parts = [rank["sharded"][name] for rank in ranks]
        assert sum(part["checksum"] for part in parts) % (1 << 64) == expected
        assert {part["replica"] for part in parts} == {0}
        # Replicated along the mesh: each rank has a whole copy, told apart by its number.
        copies = [rank["replicated"][name] for rank in ranks]
        assert [copy["checksum"] for copy in copies] == [expected, expected]
        assert [copy["replica"] for copy in copies] == [0, 1]
    assert ranks[0]["partial"] == "its values are partial sums that ranks have not reduced"
