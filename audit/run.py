"""Reading a run: which files it has, its rows as Arrow, and a DuckDB connection with the views."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rlaudit import schema
from rlaudit.arrow import arrow_schema
from rlaudit.derived import SOURCES, derive, is_derived, process_name
from rlaudit.errors import DamagedRun, RunNotFound
from rlaudit.manifest import FILE_NAME, Manifest
from rlaudit.segments import Segment, convert_spool, parse_segment
from rlaudit.spool import TornSpool
from rlaudit.storage import LocalStorage, RemoteStorage, storage_for

if TYPE_CHECKING:
    import duckdb

JOURNAL_PREFIX = ".compaction-"
"""Head of the names of compaction's journals, in a table's folder."""

MANY_SEGMENTS = 16

Steps = tuple[int, int]
"""An inclusive range of steps."""


_STEPPED = ("sequences", "scores", "links", "framework_metrics")
"""Tables without rows of unknown step."""


class Run:
    """A captured run, opened for reading. Nothing in its folder is changed.

    Rows that capture has not turned into segments yet (a run that is still going, or whose launcher was killed)
    are read from the spool through a temporary copy that lives as long as this object.
    """

    def __init__(self, storage: LocalStorage | RemoteStorage, manifest: Manifest) -> None:
        self._storage = storage
        self.manifest = manifest
        self.path = storage.location
        self.foreign: list[str] = []
        """Files in the tables' folders that are no segments; they are left alone."""
        self.torn: list[str] = []
        """Spools of which nothing could be read."""
        self._temporary: str | None = None
        self._kept_derived: list[Segment] = []
        self._segments = self._find_segments()
        self._derived: dict[str, list[Segment]] | None = None
        self._bytes: dict[str, int] = {}

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Open the run at ``path``, a local folder or a URL that fsspec knows.

        RunNotFound where there is none, UnknownFormat for another format version, DamagedRun for an unreadable manifest.
        """
        storage = storage_for(path)
        try:
            text = storage.read_text(FILE_NAME)
        except FileNotFoundError:
            raise RunNotFound(f"{path} holds no run: it has no {FILE_NAME}") from None
        except PermissionError:
            raise RunNotFound(
                f"{path} can't be read: permission denied on {FILE_NAME}; captures are private to the user who made them"
            ) from None
        return cls(storage, Manifest.from_json(text, f"{storage.location}/{FILE_NAME}"))

    def __del__(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    @property
    def id(self) -> str:
        """The run's identifier."""
        return self.manifest.run_id

    def _find_segments(self) -> dict[str, list[Segment]]:
        # Spools are listed before segments: one that is converted in between is then seen as segments and skipped below.
        spools = [Path(p) for p in self._storage.files("spool")] if isinstance(self._storage, LocalStorage) else []
        found: dict[str, list[Segment]] = {table.name: [] for table in schema.TABLES}
        for table, segments in found.items():
            superseded = self._superseded(table)
            for path in self._storage.files(table):
                segment = parse_segment(table, path)
                if path.rsplit("/", 1)[-1] in superseded:
                    continue
                if segment is None:
                    self.foreign.append(path)
                elif is_derived(segment):
                    self._kept_derived.append(segment)
                else:
                    segments.append(segment)
        self._add_spools(found, spools)
        return found

    def _superseded(self, table: str) -> set[str]:
        """Names of segments that a compaction under way, or one that crashed, has replaced already (``rlaudit.compaction``)."""
        if not isinstance(self._storage, LocalStorage):
            return set()
        names: set[str] = set()
        for journal in (self._storage.root / table).glob(f"{JOURNAL_PREFIX}*.json"):
            try:
                plan = json.loads(journal.read_text(encoding="utf-8"))
            except FileNotFoundError:
                continue  # it finished since it was listed
            if (journal.parent / plan["new"]).exists():
                names.update(plan["old"])
        return names

    def _add_spools(self, found: dict[str, list[Segment]], spools: Iterable[Path]) -> None:
        done = {_identity(s) for segments in found.values() for s in segments}
        for spool in spools:
            try:
                conversion = convert_spool(spool, self._temporary_folder())
            except FileNotFoundError:
                continue
            except TornSpool as error:
                self.torn.append(str(error))
                continue
            for segment in conversion.segments:
                if _identity(segment) not in done:
                    found[segment.table].append(segment)

    def _temporary_folder(self) -> Path:
        if self._temporary is None:
            self._temporary = tempfile.mkdtemp(prefix="rlaudit-")
        return Path(self._temporary)

    def recorded(self, table: str) -> list[Segment]:
        """The segments that capture wrote, without what was derived from them (``rlaudit.derived``)."""
        return self._segments[table]

    def _all_segments(self, table: str) -> list[Segment]:
        """Recorded and derived segments. Derived links hold the recorded ones too."""
        recorded = self._segments[table]
        if table not in ("links", "scores") or not self._segments["requests"]:
            return recorded
        if self._derived is None:
            self._derived = {"links": self._segments["links"], "scores": []}  # what deriving itself reads
            self._derived.update(self._find_derived())
        return self._derived["links"] if table == "links" else [*recorded, *self._derived["scores"]]

    def _find_derived(self) -> dict[str, list[Segment]]:
        process = process_name(segment for table in SOURCES for segment in self._segments[table])
        segments = [segment for segment in self._kept_derived if segment.process == process]
        if not segments:
            segments = derive(self, self._temporary_folder(), process)
        return {table: own for table in ("links", "scores") if (own := [s for s in segments if s.table == table])}

    def keep_derived(self) -> None:
        """Put what is derived into the run's folder, so that it isn't made anew at every reading; outdated ones go. Local runs only."""
        folder = Path(self.path)
        if not self._segments["requests"]:
            return
        process = process_name(segment for table in SOURCES for segment in self._segments[table])
        if not any(segment.process == process for segment in self._kept_derived):
            self._derived = {"links": self._segments["links"], "scores": []}
            segments = derive(self, folder, process)
            self._derived.update({table: own for table in ("links", "scores") if (own := [s for s in segments if s.table == table])})
        for segment in self._kept_derived:
            if segment.process != process:
                Path(segment.path).unlink(missing_ok=True)

    def segments(self, table: str, steps: Steps | None = None) -> list[Segment]:
        """The segments of ``table`` that may hold rows of ``steps`` (inclusive; None: all), by first step."""
        hits = [
            s
            for s in self._all_segments(table)
            if steps is None or s.first_step is None or s.last_step is None or (s.first_step <= steps[1] and s.last_step >= steps[0])
        ]
        return sorted(hits, key=lambda s: (s.first_step if s.first_step is not None else -1, s.process, s.number))

    def bytes(self, table: str) -> int:
        """Bytes on disk of a table's segments, as they were when the run was opened or this was first asked."""
        if table not in self._bytes:
            local = isinstance(self._storage, LocalStorage)
            segments = self._all_segments(table)
            self._bytes[table] = sum(Path(s.path).stat().st_size if local else self._storage.size(s.path) for s in segments)
        return self._bytes[table]

    def read(
        self, table: str, columns: Sequence[str] | None = None, steps: Steps | None = None, filters: pc.Expression | None = None
    ) -> pa.Table:
        """Rows of ``table`` as Arrow in the schema's types (columns in the given order; None: all).

        ``steps``: inclusive range. ``filters``: a pyarrow expression. DamagedRun names a segment that can't be read.
        """
        target = arrow_schema(table)
        names = list(columns) if columns is not None else target.names
        wanted = pa.schema([target.field(name) for name in names])
        segments = self.segments(table, steps)
        inside = [s for s in segments if steps is None or _within(s, steps)]
        across = [s for s in segments if steps is not None and not _within(s, steps)]
        parts = [*self._read_all(inside, names, filters)]
        if steps is not None and across:
            limits = (pc.field("step") >= steps[0]) & (pc.field("step") <= steps[1])
            parts += self._read_all(across, names, limits if filters is None else filters & limits)
        return pa.concat_tables([part.cast(wanted) for part in parts]) if parts else wanted.empty_table()

    def _read_all(self, segments: Sequence[Segment], columns: list[str], filters: pc.Expression | None) -> list[pa.Table]:
        if len(segments) >= MANY_SEGMENTS and isinstance(self._storage, LocalStorage):
            import pyarrow.dataset as ds

            # One scan over all of them: opening a file by itself costs ten milliseconds, of a thousand processes' ten seconds.
            try:
                whole = arrow_schema(segments[0].table)
                files = ds.dataset([segment.path for segment in segments], schema=whole, format="parquet")
                return [files.to_table(columns=columns, filter=filters)]
            except (OSError, pa.ArrowException):
                pass  # one of them is at fault: read one by one, the error names it
        return [self.read_segment(segment, columns, filters) for segment in segments]

    def read_segment(self, segment: Segment, columns: Sequence[str] | None = None, filters: pc.Expression | None = None) -> pa.Table:
        """Rows of one segment (None: all columns). DamagedRun where it can't be read."""
        try:
            return pq.read_table(
                self._storage.open(segment.path), columns=list(columns) if columns is not None else None, filters=filters, partitioning=None
            )
        except (OSError, pa.ArrowException) as error:
            raise DamagedRun(self._damage(segment, error)) from error

    def _damage(self, segment: Segment, error: Exception) -> str:
        """What is wrong with a segment that could not be read, and what to do."""
        try:
            missing = set(arrow_schema(segment.table).names) - set(pq.read_schema(self._storage.open(segment.path)).names)
        except (OSError, pa.ArrowException):
            missing = set()
        if missing:
            return (
                f"{segment.path} is no segment of table {segment.table} as this rlaudit knows it: it lacks {', '.join(sorted(missing))}; "
                "move it out of the run's folder, or read the run with the rlaudit that wrote it"
            )
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        return f"segment {segment.path} can't be read ({first}); move it out of the run's folder to use the rest, its rows are then missing"

    def notes(self, folder: str) -> list[str]:
        """Texts of the small files in a subfolder; empty where there is none (and on object stores, which hold no spools)."""
        if not isinstance(self._storage, LocalStorage):
            return []
        return [Path(path).read_text(encoding="utf-8") for path in self._storage.files(folder)]

    def check_segments(self) -> None:
        """Open every segment's footer; DamagedRun names the first that is unreadable or no segment of its table."""
        for table, segments in self._segments.items():
            for segment in segments:
                try:
                    names = pq.read_schema(self._storage.open(segment.path)).names
                except (OSError, pa.ArrowException) as error:
                    raise DamagedRun(self._damage(segment, error)) from error
                if set(arrow_schema(table).names) - set(names):
                    raise DamagedRun(self._damage(segment, ValueError("columns are missing")))

    def steps(self) -> list[int]:
        """The training steps for which there are sequences, in order."""
        column = self.read("sequences", ["step"])["step"]
        return sorted(value for value in pc.unique(column).to_pylist() if value is not None)

    def prepare(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Let ``connection`` read this run's files (an object store has to be registered with DuckDB)."""
        if isinstance(self._storage, RemoteStorage) and not connection.filesystem_is_registered(self._storage.protocol):
            connection.register_filesystem(self._storage.filesystem)

    def connect(self) -> duckdb.DuckDBPyConnection:
        """A DuckDB connection with one view a table and the views of ``rlaudit.sql``. See ``rlaudit.query``."""
        from rlaudit.query import connect

        return connect(self)


def _identity(segment: Segment) -> tuple[str, str, int, bool]:
    """What a segment that is made again from the same spool has in common with the first one."""
    return segment.table, segment.process, segment.number, segment.first_step is None


def _lies_within(segment: Segment, steps: Steps) -> bool:
    """True where every row of the segment is of ``steps``: by its name, in tables whose rows all have a step."""
    known = segment.first_step is not None and segment.last_step is not None and segment.table in _STEPPED
    return known and steps[0] <= segment.first_step and segment.last_step <= steps[1]  # type: ignore[operator]


def _within(segment: Segment, steps: Steps) -> bool:
    """True where all rows of a segment are of these steps, so that no row has to be looked at for it."""
    return (
        segment.first_step is not None
        and segment.last_step is not None
        and steps[0] <= segment.first_step
        and segment.last_step <= steps[1]
    )


def open_runs(paths: Mapping[str, str | Path]) -> dict[str, Run]:
    """Open several runs under names."""
    return {name: Run.open(path) for name, path in paths.items()}
