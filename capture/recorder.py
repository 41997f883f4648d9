"""The recorder of one process: a bounded queue, and a thread that writes what is in it to the spool.

The training thread only copies and enqueues. Where the queue is full, whole batches are dropped and
counted, or, under ``--lossless``, the training thread waits. Nothing here raises into the training loop, and nothing
depends on the interpreter ending well: what the writer has taken from the queue is in the file.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlaudit import schema
from rlaudit.capture.config import CaptureConfig
from rlaudit.capture.hooks import HookLog
from rlaudit.capture.process import current_rank, process_facts, rank_facts, say, started_facts
from rlaudit.capture.process_spool import ProcessSpool
from rlaudit.capture.snapshot import Pending, Ragged, flat_view
from rlaudit.spool import Constant, Field, Lists, encode_frame
from rlaudit.tokens import TokenHasher, prompt_fraction

FRAME_BYTES = 32 << 20
"""A batch is written in frames of about this size, so that laying it out needs bounded memory."""
HEARTBEAT_SECONDS = 10.0
STEP_SECONDS = 0.05
"""The longest that the end of a step waits for the writer."""
_REMEMBERED_PROMPTS = 200_000
_EXIT_SECONDS = 60.0


class Batch(NamedTuple):
    """Rows of one table on their way to the writer. ``sequence_ids`` and ``prompts`` serve sampling."""

    table: str
    rows: int
    columns: Sequence[Pending]
    nbytes: int
    sequence_ids: Sequence[str] | None = None
    prompts: Ragged | None = None


class Recorder:
    """Records rows of the run's tables from this process. Thread-safe; survives fork with a spool of its own."""

    def __init__(self, config: CaptureConfig, log: HookLog, facts: Mapping[str, Any] | None = None, noted: bool = True) -> None:
        """facts: this process's ``process_facts`` where it has some already. noted: it has left its note at the start, spool number 0."""
        self.config = config
        self.log = log
        self._hasher = TokenHasher(bytes.fromhex(config.token_key)) if config.token_key else None
        self._begin(dict(facts) if facts is not None else process_facts(config.attempt), noted)
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self.close)

    def _begin(self, facts: dict[str, Any], noted: bool) -> None:
        self._changed = threading.Condition(threading.Lock())  # guards the queue
        self._spool_lock = threading.Lock()  # guards the spool; never taken while a caller of submit waits for the queue
        self._queue: deque[Batch] = deque()
        self._queued_bytes = 0
        self._closing = False
        self._thread: threading.Thread | None = None
        self._spool = ProcessSpool(Path(self.config.run, "spool"), facts, 1)
        self._noted = noted
        self._kept: OrderedDict[str, float] = OrderedDict()
        self._usage_checked = 0.0
        self._run_bytes = 0
        self._last_heartbeat = time.monotonic()
        self._beats = 0
        self.stopped: str | None = None
        self._words: list[dict[str, Any]] = []
        self.rows: dict[str, int] = {}
        self.dropped: dict[str, dict[str, int]] = {}
        self.written_bytes = 0
        self.writer_seconds = 0.0

    def _forked(self) -> None:
        """A child that this process forked starts afresh: with a spool of its own, without thread, queue and counts of its parent."""
        self._spool.forget()
        self.log.clear()
        self._begin(process_facts(self.config.attempt), noted=False)

    # --- the training thread's side ---

    def wants(self, table: str) -> bool:
        """True where rows of ``table`` would be recorded now: lets an adapter spare the work of reading what would be dropped."""
        return table in self.config.tables and self.stopped is None

    def accepts(self, table: str, rows: int) -> bool:
        """True where ``rows`` rows of ``table`` will be recorded; otherwise they need not be copied, and are counted if capture stopped."""
        if table not in self.config.tables:
            return False
        if self.stopped is not None or self._closing:
            self._count_dropped(table, rows, self.stopped or "closed")
            return False
        return True

    def submit(
        self, table: str, rows: int, columns: Sequence[Pending], sequence_ids: Sequence[str] | None = None, prompts: Ragged | None = None
    ) -> None:
        """Enqueue copied rows of a table that is wanted. Drops and counts them where the queue is full (waits under ``--lossless``)."""
        if rows == 0:
            return
        batch = Batch(table, rows, columns, sum(c.nbytes for c in columns) + (prompts.nbytes if prompts else 0), sequence_ids, prompts)
        with self._changed:
            while self._queued_bytes and self._queued_bytes + batch.nbytes > self.config.queue_bytes:
                if not self.config.lossless or self._closing or self.stopped is not None or not self._writing():
                    self._count_dropped(table, rows, "queue full")
                    return
                self._changed.wait(1.0)
            if batch.nbytes > self.config.queue_bytes and not self.config.lossless:
                self._count_dropped(table, rows, "larger than the queue")
                return
            self._queue.append(batch)
            self._queued_bytes += batch.nbytes
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_forever, name="rlaudit-writer", daemon=True)
                self._thread.start()
                self._close_with_multiprocessing()
            self._changed.notify_all()

    def _writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _close_with_multiprocessing(self) -> None:
        """Processes of multiprocessing that were forked leave through os._exit: no atexit function runs, but finalizers do."""
        util, process = sys.modules.get("multiprocessing.util"), sys.modules.get("multiprocessing.process")
        if util is not None and process is not None and process.parent_process() is not None:
            util.Finalize(None, self.close, exitpriority=-1000)  # after whatever may still record

    def flush(self, timeout: float = 60.0) -> bool:
        """Wait until everything enqueued so far is in the spool; False where that took longer than ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._queued_bytes or self._queue:
                left = deadline - time.monotonic()
                if left <= 0 or not self._writing():
                    return not (self._queued_bytes or self._queue)
                self._changed.wait(left)
        return True

    def event(
        self, kind: str, name: str, message: str | None = None, count: int | None = None, detail: Mapping[str, Any] | None = None
    ) -> None:
        """Write an event at once, on the calling thread (rare: attaching, stopping, heartbeats)."""
        event = _event(kind, name, message=message, count=count, detail=json.dumps(detail, default=str) if detail is not None else None)
        with self._spool_lock:
            self._append(_frame(event))

    def close(self) -> None:
        """Write what is queued, a last heartbeat, and seal the spool. Called at exit; later submissions are dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(_EXIT_SECONDS)
        if self._queue:
            self._stop(f"the queue could not be written within {_EXIT_SECONDS:.0f} s of the interpreter's exit")
        with self._spool_lock:
            self._heartbeat_locked()
            if self.stopped is None:
                self.stopped = "closed"
            try:
                self._spool.close()
            except OSError as error:
                self.log.failed("spool", error)  # it is whole; readers and the launcher find it as it is

    # --- the writer's side ---

    def _write_forever(self) -> None:
        while True:
            batch = self._next_batch()
            if batch is None:
                if self._closing:
                    return
                self._beat_if_due()
                continue
            start = time.thread_time()
            try:
                if self.stopped is None:
                    self._write(batch)
                else:
                    self._count_dropped(batch.table, batch.rows, self.stopped)
            except Exception as error:  # one batch is lost and counted; the next may be fine
                self._count_dropped(batch.table, batch.rows, f"{type(error).__name__}: {error}")
                self.log.failed(f"writer: {batch.table}", error)
            self.writer_seconds += time.thread_time() - start
            size = batch.nbytes
            del batch  # its memory is free before the queue says so
            with self._changed:
                self._queued_bytes -= size
                self._changed.notify_all()
            self._beat_if_due()

    def _next_batch(self) -> Batch | None:
        """The oldest batch; None where none came within the heartbeat's interval or the recorder closes."""
        with self._changed:
            if not self._queue and not self._closing:
                self._changed.wait(max(0.05, min(HEARTBEAT_SECONDS, self.config.flush_seconds - self._spool.seconds_open)))
            return self._queue.popleft() if self._queue else None

    def _write(self, batch: Batch) -> None:
        if batch.table in ("sequences", "scores", "routing") and (self.config.sample < 1.0 or self.config.routing_sample < 1.0):
            kept = self._sampled(batch)
            if len(kept) < batch.rows:
                self._count_dropped(batch.table, batch.rows - len(kept), "not in the sample")
            for row in kept:
                self._write_rows(batch, row, row + 1)
            return
        step = max(1, FRAME_BYTES * batch.rows // max(1, batch.nbytes))
        for low in range(0, batch.rows, step):
            self._write_rows(batch, low, min(batch.rows, low + step))

    def _sampled(self, batch: Batch) -> list[int]:
        bound = self.config.sample if batch.table != "routing" else min(self.config.sample, self.config.routing_sample)
        ids = batch.sequence_ids or [""] * batch.rows
        if batch.prompts is not None:
            for row, piece in enumerate(batch.prompts.pieces(0, batch.rows)):
                prompt = piece[0] if piece is not None else np.zeros(0, np.int32)
                self._kept[ids[row]] = prompt_fraction(self.config.run_id, prompt)
                if len(self._kept) > _REMEMBERED_PROMPTS:
                    self._kept.popitem(last=False)
        # A sequence whose prompt this process never saw is kept: too much is better than rows that can't be joined.
        return [row for row in range(batch.rows) if self._kept.get(ids[row], 0.0) < bound]

    def _write_rows(self, batch: Batch, low: int, high: int) -> None:
        columns: dict[str, Field] = {}
        for pending in batch.columns:
            columns.update(pending.fields(low, high))
        if self._hasher is not None:
            for name in schema.TOKEN_COLUMNS.get(batch.table, ()):
                field = columns.get(name)
                if isinstance(field, Lists):
                    hashed = self._hasher(np.frombuffer(field.values, np.int32))
                    columns[name] = field._replace(values=flat_view(hashed))
        frame = encode_frame(batch.table, high - low, columns)
        with self._spool_lock:
            if self._over_budget():
                self._stop_locked(f"--max-bytes {self.config.max_bytes} reached")
            if self.stopped is None and self._append(frame):
                self.rows[batch.table] = self.rows.get(batch.table, 0) + high - low
                return
        self._count_dropped(batch.table, high - low, self.stopped or "not written")

    def _append(self, frame: Sequence[bytes | memoryview]) -> bool:
        """Append a frame (the spool's lock is held); False, after saying so once, where the disk refuses."""
        if self.stopped is not None:
            return False
        try:
            if not self._noted:
                self._noted = True
                detail = {**started_facts(), "program": "(forked)"}
                self.written_bytes += self._spool.append(_frame(_event("process_started", "process", detail=json.dumps(detail))))
            if self._spool.facts["rank"] is None and (rank := current_rank()) is not None:
                self._spool.know_rank(rank)  # a loop that was started without RANK has initialised torch.distributed
            self.written_bytes += self._spool.append(frame)
        except OSError as error:
            self._stop_locked(f"the run's folder can't be written: {error.strerror or error}")
            return False
        return True

    def _over_budget(self) -> bool:
        if self.config.max_bytes is None:
            return False
        now = time.monotonic()
        if now - self._usage_checked >= 1.0:
            # The launcher notes what the run takes on disk without the open spools; several processes share the bound.
            self._usage_checked = now
            try:
                self._run_bytes = int(Path(self.config.run, "spool", ".usage").read_text(encoding="ascii"))
            except (OSError, ValueError):
                self._run_bytes = 0
        return self._run_bytes + self._spool.size >= self.config.max_bytes

    def _stop(self, reason: str) -> None:
        with self._spool_lock:
            self._stop_locked(reason)

    def _stop_locked(self, reason: str) -> None:
        if self.stopped is not None:
            return
        self.stopped = reason
        self._words = [_event("capture_stopped", reason, message=reason)]
        self._heartbeat_locked()
        kept = "" if self._spool.removed else "; what was captured is kept"
        say(f"capture stopped in process {os.getpid()}: {reason}. Training goes on{kept}.")

    def _count_dropped(self, table: str, rows: int, reason: str) -> None:
        reasons = self.dropped.setdefault(table, {})
        reasons[reason] = reasons.get(reason, 0) + rows

    def _beat_if_due(self) -> None:
        with self._spool_lock:
            self._spool.seal_older_than(self.config.flush_seconds)  # so that the launcher makes Parquet of it
            if time.monotonic() - self._last_heartbeat >= HEARTBEAT_SECONDS:
                self._heartbeat_locked()

    def _heartbeat(self) -> None:
        with self._spool_lock:
            self._heartbeat_locked()

    def _heartbeat_locked(self) -> None:
        """What this process has done so far; the last one a process wrote (the highest ``beat``) is its balance.

        Where the disk takes no more frames it is left in the room for last words, so that what was lost since is counted.
        """
        self._last_heartbeat = time.monotonic()
        self._beats += 1
        detail = {
            "beat": self._beats,
            "rows": self.rows,
            "dropped": self.dropped,
            "bytes": self.written_bytes,
            "fired": self.log.fired,
            "failures": self.log.failures,
            "hook_seconds": round(self.log.seconds, 6),
            "writer_seconds": round(self.writer_seconds, 6),
            "process_seconds": round(time.process_time(), 6),
            **({"ranks": ranks} if (ranks := rank_facts()) else {}),
        }
        if self.stopped is None:
            self._append(_frame(_event("heartbeat", "process", detail=json.dumps(detail))))
            return
        balance = _event("heartbeat", "process", detail=json.dumps(detail))
        if not self._spool.say_last([*self._words, balance]):
            short = {name: detail[name] for name in ("beat", "rows", "dropped")}
            self._spool.say_last([*self._words, {**balance, "detail": json.dumps(short)}])

    def step_done(self, step: int) -> None:
        """A training step ended: what it recorded is in the file, or nearly (a writer that is far behind is not waited for). Noted, at
        most once a second, in a heartbeat."""
        self.flush(STEP_SECONDS)
        if time.monotonic() - self._last_heartbeat >= 1.0:
            self._heartbeat()


def _event(kind: str, name: str, **more: Any) -> dict[str, Any]:
    """One row of ``events``, as JSON values by column."""
    return {"time": time.time(), "kind": kind, "name": name, **more}


def _frame(event: Mapping[str, Any]) -> list[bytes | memoryview]:
    return encode_frame("events", 1, {name: Constant(value) for name, value in event.items()})
