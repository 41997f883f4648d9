"""What the recorder copies: independent of the source afterwards, narrowed without changing a value, padding removed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlaudit.capture.snapshot import Experts, HostCopy, Ragged, host_copy
from rlaudit.recording import Packed, Padded
from rlaudit.spool import Blobs, Lists, Scalars

torch = pytest.importorskip("torch")


def lists(ragged: Ragged, rows: int) -> list[list[float] | None]:
    """The rows that the spool would get, as Python lists."""
    field = ragged.fields(0, rows)[ragged.name]
    assert isinstance(field, Lists)
    values = np.frombuffer(field.values, np.dtype(field.dtype))
    valid = np.frombuffer(field.valid, np.uint8) if field.valid is not None else np.ones(len(values), np.uint8)
    found: list[list[float] | None] = []
    at = 0
    for length in np.frombuffer(field.lengths, np.int32):
        if length < 0:
            found.append(None)
            continue
        found.append([v if ok else None for v, ok in zip(values[at : at + length].tolist(), valid[at : at + length], strict=True)])  # type: ignore[misc]
        at += length
    return found


@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_overwriting_the_source_after_the_call_changes_nothing(make: object) -> None:
    values = make([[1.0, 2.0], [3.0, 4.0]])  # type: ignore[operator]
    mask = make([[1, 1], [1, 0]])  # type: ignore[operator]
    rows = [[5.0, 6.0], [7.0]]
    padded, plain = Ragged("logprobs", Padded(values, mask), "<f4", 2), Ragged("logprobs", rows, "<f4", 2)
    values[:] = -9
    mask[:] = 0
    rows[0][0] = -9
    assert lists(padded, 2) == [[1.0, 2.0], [3.0]]
    assert lists(plain, 2) == [[5.0, 6.0], [7.0]]


@given(data=st.data(), rows=st.integers(1, 5), width=st.integers(1, 7))
def test_any_mask_keeps_exactly_the_marked_entries_in_order(data: st.DataObject, rows: int, width: int) -> None:
    mask = np.array(data.draw(st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=rows, max_size=rows)))
    values = np.arange(rows * width).reshape(rows, width)
    ragged = Ragged("prompt_tokens", Padded(values, mask), "<i4", rows)
    assert lists(ragged, rows) == [values[i][mask[i]].tolist() for i in range(rows)]


def test_lengths_keep_the_beginning_of_each_row() -> None:
    ragged = Ragged("logprobs", Padded(torch.arange(6.0).reshape(2, 3), lengths=torch.tensor([2, 0])), "<f4", 2)
    assert lists(ragged, 2) == [[0.0, 1.0], []]


def test_missing_values_become_null_and_nan_stays_nan() -> None:
    got = lists(Ragged("logprobs", [[-1.0, None, float("nan")], None], "<f4", 2), 2)
    assert got[0] is not None
    assert got[0][:2] == [-1.0, None]
    assert np.isnan(got[0][2])
    assert got[1] is None


def test_valid_marks_kept_entries_as_missing() -> None:
    values, mask, valid = np.ones((1, 3)), np.ones((1, 3)), np.array([[1, 0, 1]])
    assert lists(Ragged("logprobs", Padded(values, mask, valid=valid), "<f4", 1), 1) == [[1.0, None, 1.0]]


@given(st.lists(st.floats(width=16, allow_nan=False), min_size=1, max_size=20))
def test_bfloat16_values_are_kept_exactly(values: list[float]) -> None:
    tensor = torch.tensor(values).to(torch.bfloat16)
    assert host_copy(tensor, np.dtype("<f4")).array().tolist() == tensor.float().tolist()


def test_tensors_that_require_gradients_are_copied_without_touching_the_graph() -> None:
    tensor = torch.ones(2, 2, requires_grad=True) * 2
    assert host_copy(tensor, np.dtype("<f4")).array().tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert tensor.requires_grad


@pytest.mark.parametrize(("dtype", "kind"), [("int64", "<i4"), ("int32", "|u1"), ("bool", "|u1")])
def test_narrowing_keeps_values_that_fit(dtype: str, kind: str) -> None:
    tensor = torch.tensor([0, 1, 1, 0]).to(getattr(torch, dtype))
    copy = host_copy(tensor, np.dtype(kind)).array()
    assert copy.dtype == np.dtype(kind)
    assert copy.tolist() == [0, 1, 1, 0]


def test_padded_takes_exactly_one_of_mask_and_lengths() -> None:
    with pytest.raises(ValueError, match="exactly one of mask and lengths"):
        Ragged("logprobs", Padded(np.ones((1, 2))), "<f4", 1)


def test_a_batch_with_another_number_of_rows_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match="2 rows where there are 3"):
        Ragged("logprobs", [[1.0], [2.0]], "<f4", 3)


@pytest.mark.parametrize(("experts", "kind"), [(256, np.uint8), (257, np.dtype("<u2"))])
def test_expert_ids_take_one_byte_up_to_256_experts_and_two_above(experts: int, kind: object) -> None:
    ids = torch.arange(2 * 4 * 3 * 2).reshape(2, 4, 3, 2) % 48
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 0, 0]])
    fields = Experts(Padded(ids, mask), None, 3, experts, 2).fields(0, 2)
    blobs = fields["experts"]
    assert isinstance(blobs, Blobs)
    assert fields["tokens"] == Scalars([3, 2])
    flat = np.frombuffer(blobs.values, kind)  # type: ignore[call-overload]
    assert flat.tolist() == [*ids[0, 1:].reshape(-1).tolist(), *ids[1, :2].reshape(-1).tolist()]


def test_routing_of_another_number_of_layers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected .* 5 layers"):
        Experts([np.zeros((4, 3, 2), int)], None, 5, 8, 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device here: the pinned, non-blocking copy was not exercised")
def test_a_device_tensor_overwritten_right_after_is_recorded_as_it_was() -> None:
    tensor = torch.arange(1 << 20, device="cuda", dtype=torch.int64).reshape(1024, 1024)
    copy = host_copy(tensor, np.dtype("<i4"))
    tensor.fill_(-1)
    assert isinstance(copy, HostCopy)
    np.testing.assert_array_equal(copy.array(), np.arange(1 << 20).reshape(1024, 1024))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device here: stream ordering was not exercised")
def test_copying_from_a_device_does_not_wait_for_the_computing_stream() -> None:
    import time

    work = torch.randn(8192, 8192, device="cuda")
    tensor = torch.ones(1 << 20, device="cuda")
    host_copy(tensor, np.dtype("<f4")).array()
    torch.cuda.synchronize()
    for _ in range(40):
        work = work @ work
    began = time.perf_counter()
    copy = host_copy(tensor, np.dtype("<f4"))
    handed_over = time.perf_counter() - began
    torch.cuda.synchronize()
    waited = time.perf_counter() - began
    assert handed_over < waited / 2
    assert copy.array().sum() == 1 << 20


def test_packed_sequences_come_apart_at_their_offsets() -> None:
    values, offsets = torch.arange(7.0), torch.tensor([0, 3, 3, 7])
    ragged = Ragged("logprobs", Packed(values, offsets), "<f4", 3)
    values[:] = -1
    offsets[:] = 0
    assert lists(ragged, 3) == [[0.0, 1.0, 2.0], [], [3.0, 4.0, 5.0, 6.0]]


def test_packed_prompt_and_response_are_cut_to_the_response() -> None:
    packed = Packed(np.arange(10.0), [0, 4, 10], skip=[1, 4], keep=[2, 5])
    assert lists(Ragged("logprobs", packed, "<f4", 2), 2) == [[1.0, 2.0], [8.0, 9.0]]


def test_packed_routing_keeps_each_sequences_tokens() -> None:
    ids = torch.randint(0, 8, (5, 2, 2))
    fields = Experts(Packed(ids, [0, 2, 5]), None, 2, 8, 2).fields(0, 2)
    blobs = fields["experts"]
    assert isinstance(blobs, Blobs)
    assert fields["tokens"] == Scalars([2, 3])
    assert np.frombuffer(blobs.values, np.uint8).tolist() == ids.reshape(-1).tolist()


def test_the_memory_of_a_packed_copy_is_counted_once() -> None:
    ragged = Ragged("logprobs", Packed(np.zeros(1000, np.float32), [0, 500, 1000]), "<f4", 2)
    assert ragged.nbytes == 4000
