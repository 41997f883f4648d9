"""A spool keeps every whole frame, whatever happens to its end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlaudit.spool import Blobs, Constant, Lists, Scalars, SpoolFile, TornSpool, encode_frame, read_spool

FACTS = {"host": "h", "rank": None, "process": "h-1-0", "attempt": 0}


def view(array: np.ndarray) -> memoryview:
    return memoryview(array).cast("B") if array.size else memoryview(b"")


def frame(number: int) -> list[bytes | memoryview]:
    values = np.arange(number, dtype=np.float32)
    return encode_frame("scores", 1, {"step": Constant(number), "logprobs": Lists("<f4", view(np.array([number], np.int32)), view(values))})


def write(folder: Path, count: int) -> tuple[Path, list[int]]:
    """A spool of ``count`` frames and the file's size after each."""
    spool = SpoolFile(folder, "h-1-0", 0, FACTS)
    sizes = [spool.size]
    for number in range(count):
        spool.append(frame(number))
        sizes.append(spool.size)
    return spool.seal(), sizes


def test_every_kind_of_column_comes_back_as_written(tmp_path: Path) -> None:
    lengths = np.array([2, -1], np.int32)
    blob_lengths = np.array([3, -1], np.int64)
    spool = SpoolFile(tmp_path, "h-1-0", 0, FACTS)
    spool.append(
        encode_frame(
            "t",
            2,
            {
                "constant": Constant(7),
                "scalars": Scalars(["a", None]),
                "lists": Lists("<f4", view(lengths), view(np.array([1.5, np.nan], np.float32)), view(np.array([1, 0], np.uint8))),
                "blobs": Blobs(view(blob_lengths), memoryview(b"xyz")),
            },
        )
    )
    contents = read_spool(spool.seal())
    (got,) = list(contents.frames)
    assert contents.defaults == FACTS
    assert got.columns["constant"] == Constant(7)
    assert got.columns["scalars"] == Scalars(["a", None])
    lists = got.columns["lists"]
    assert isinstance(lists, Lists)
    np.testing.assert_array_equal(np.frombuffer(lists.values, "<f4"), np.array([1.5, np.nan], np.float32))
    assert lists.valid is not None
    assert bytes(lists.valid) == b"\x01\x00"
    blobs = got.columns["blobs"]
    assert isinstance(blobs, Blobs)
    assert bytes(blobs.values) == b"xyz"


@given(cut=st.integers(min_value=0, max_value=2000))
def test_a_spool_cut_anywhere_yields_exactly_the_frames_before_the_cut(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path, sizes = write(tmp_path_factory.mktemp("spool"), 6)
    cut = min(cut, sizes[-1])
    with path.open("r+b") as file:
        file.truncate(cut)
    if cut < sizes[0]:
        with pytest.raises(TornSpool):
            read_spool(path)
        return
    steps = [f.columns["step"].value for f in read_spool(path).frames]  # type: ignore[union-attr]
    assert steps == [n for n in range(6) if sizes[n + 1] <= cut]


def test_a_damaged_head_ends_the_spool_there(tmp_path: Path) -> None:
    path, sizes = write(tmp_path, 3)
    data = bytearray(path.read_bytes())
    data[sizes[1] + 25] ^= 0xFF  # inside the second frame's head
    path.write_bytes(data)
    assert len(list(read_spool(path).frames)) == 1


def test_a_foreign_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "h-1-0_000000.spool"
    path.write_bytes(b"PAR1" * 10)
    with pytest.raises(TornSpool, match="is not a spool"):
        read_spool(path)


def test_a_failed_append_leaves_the_frames_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    spool = SpoolFile(tmp_path, "h-1-0", 0, FACTS)
    spool.append(frame(3))
    real, calls = os.write, 0

    def full(fd: int, data: memoryview) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError(28, "No space left on device")
        return real(fd, data[:5])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        spool.append(frame(4))
    monkeypatch.setattr(os, "write", real)
    spool.append(frame(5))
    assert [f.columns["step"].value for f in read_spool(spool.seal()).frames] == [3, 5]  # type: ignore[union-attr]


def test_last_words_are_read_after_the_frames_and_replace_each_other(tmp_path: Path) -> None:
    spool = SpoolFile(tmp_path, "h-1-0", 0, FACTS, words_room=500)
    spool.append(frame(3))
    before = spool.path.stat().st_size
    assert spool.say_last([{"kind": "capture_stopped", "name": "disk full"}, {"kind": "heartbeat", "detail": "{}"}])
    assert spool.say_last([{"kind": "capture_stopped", "name": "disk full, 3 lost"}])
    assert spool.path.stat().st_size == before, "they take no more room on the disk"
    contents = read_spool(spool.seal())
    assert contents.defaults == FACTS
    assert [(f.table, f.columns.get("name")) for f in contents.frames] == [("scores", None), ("events", Constant("disk full, 3 lost"))]


def test_last_words_that_a_killed_process_left_half_written_cost_nothing_else(tmp_path: Path) -> None:
    spool = SpoolFile(tmp_path, "h-1-0", 0, FACTS, words_room=500)
    spool.append(frame(3))
    spool.say_last([{"kind": "capture_stopped", "name": "disk full"}])
    path = spool.seal()
    path.write_bytes(path.read_bytes().replace(b"disk full", b"disk f   "))
    assert [f.table for f in read_spool(path).frames] == ["scores"]


def test_last_words_too_long_for_their_room_are_not_written(tmp_path: Path) -> None:
    spool = SpoolFile(tmp_path, "h-1-0", 0, FACTS, words_room=50)
    assert not spool.say_last([{"kind": "capture_stopped", "name": "x" * 100}])
    assert list(read_spool(spool.seal()).frames) == []
