"""Merging: runs that nodes without a shared disk captured become one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rlaudit import schema
from rlaudit.errors import BadOption, RunExists
from rlaudit.manifest import LAUNCHERS, Manifest
from rlaudit.run import Run


def merge(paths: Sequence[Path], out: Path) -> Run:
    """Put the rows of several runs of one job into a new run at ``out``; the runs stay as they are.

    Segments are linked where the file system allows it, copied otherwise; rows still in spools come along. BadOption where the runs
    are not of one job, or where the same process is in two of them (a copy of the same run); RunExists where ``out`` holds something.
    """
    runs = [Run.open(path) for path in paths]
    _check(runs)
    if out.exists() and any(out.iterdir()):
        raise RunExists(f"{out} is not empty; give a folder that doesn't exist yet")
    out.mkdir(parents=True, exist_ok=True)
    out.chmod(0o700)
    for run in runs:
        for table in schema.TABLES:
            for segment in run.recorded(table.name):
                _place(Path(segment.path), out / table.name / Path(segment.path).name)
        for record in sorted(Path(run.path, LAUNCHERS).glob("*.json")):
            _place(record, out / LAUNCHERS / record.name)
    _merged_manifest([run.manifest for run in runs]).write(out)
    Run.open(out).keep_derived()
    return Run.open(out)


def _check(runs: Sequence[Run]) -> None:
    if len(runs) < 2:
        raise BadOption("give two runs or more to merge")
    ids = {run.manifest.job or run.id for run in runs}
    if len(ids) > 1:
        raise BadOption(
            f"these are runs of different jobs ({', '.join(sorted(ids))}): merging would mix them. Launchers of one job share an id "
            "(RLAUDIT_JOB_ID, the rendezvous or the scheduler's); to set two runs side by side, query them as a=RUN_A b=RUN_B"
        )
    seen: dict[str, str] = {}
    for run in runs:
        for process in {segment.process for table in schema.TABLES for segment in run.recorded(table.name)}:
            if process in seen:
                raise BadOption(f"process {process} is in {seen[process]} and in {run.path}: one of them holds a copy of the other's rows")
            seen[process] = run.path


def _place(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _merged_manifest(manifests: Sequence[Manifest]) -> Manifest:
    """The first node's manifest, with all hosts and packages, the earliest start, the latest end and the worst exit status."""
    first = min(manifests, key=lambda m: m.started or 0.0)
    ends = [m.ended for m in manifests]
    statuses = [m.exit_status for m in manifests if m.exit_status is not None]
    versions = {name: {m.packages[name] for m in manifests if name in m.packages} for m in manifests for name in m.packages}
    differing = {name: sorted(found) for name, found in sorted(versions.items()) if len(found) > 1}
    return replace(
        first,
        ended=max(end for end in ends if end is not None) if None not in ends else None,
        exit_status=max(statuses, key=abs) if statuses else None,
        hosts=sorted({host for m in manifests for host in m.hosts}),
        devices=sorted({device for m in manifests for device in m.devices}),
        packages={name: sorted(found)[-1] for name, found in sorted(versions.items())},
        settings={**first.settings, **({"packages_differ_between_nodes": differing} if differing else {})},
        attempts=max(m.attempts for m in manifests),
    )
