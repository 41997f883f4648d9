"""Turns the spools that captured processes leave into segments, and their events into facts of the manifest."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from rlaudit.capture.process import host_name, is_alive, say
from rlaudit.manifest import Manifest
from rlaudit.run import Run
from rlaudit.segments import convert_spool, iter_spools
from rlaudit.spool import TornSpool
from rlaudit.spool_layout import OPEN_SUFFIX


def convert_and_remove(spool: Path, folder: Path) -> None:
    """Convert a sealed spool and remove it. A spool of which nothing can be read is set aside under ``spool/unreadable``."""
    try:
        convert_spool(spool, folder)
    except (ValueError, KeyError) as error:  # TornSpool is one; the others stand for damage inside
        aside = folder / "spool" / "unreadable"
        aside.mkdir(exist_ok=True)
        spool.rename(aside / spool.name)
        say(f"{error if isinstance(error, TornSpool) else f'{spool.name} is damaged ({error})'}; set aside in {aside}")
        return
    except FileNotFoundError:
        return  # another launcher of this run, on a shared folder, was faster
    spool.unlink(missing_ok=True)


def wait_for_writers(folder: Path, seconds: float) -> list[int]:
    """Wait until no process of this host has a spool open, for at most that long; returns the ids of those that still do.

    Ray's actors, for one, end a moment after the program that started them.
    """
    deadline = time.monotonic() + seconds
    while True:
        spools = [spool for spool in iter_spools(folder) if spool.suffix == OPEN_SUFFIX]
        left = sorted({pid for spool in spools if (pid := _living_writer(spool)) is not None})
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(0.1)


def convert_leftovers(folder: Path, all_hosts: bool = False) -> None:
    """Convert every spool whose process has ended, open ones of processes that were killed included.

    Whether a process of another host has ended can't be known here: its open spools stay (readers read them in place),
    unless ``all_hosts`` says that the whole run is over.
    """
    for spool in list(iter_spools(folder)):
        if spool.suffix == OPEN_SUFFIX and _may_be_written(spool, all_hosts):
            continue
        convert_and_remove(spool, folder)
    for left in (folder / "spool").glob(".usage*"):
        left.unlink(missing_ok=True)


def _may_be_written(spool: Path, all_hosts: bool) -> bool:
    """True where the process that opened this spool may still write to it."""
    if _host_and_pid(spool)[0] != host_name():
        return not all_hosts
    return _living_writer(spool) is not None


def _living_writer(spool: Path) -> int | None:
    """The id of the process that opened this spool, where it is another one of this host that still runs."""
    host, pid = _host_and_pid(spool)
    return pid if host == host_name() and pid != os.getpid() and is_alive(pid) else None


def _host_and_pid(spool: Path) -> tuple[str, int]:
    host, pid, _ = spool.stem.rsplit("_", 1)[0].rsplit("-", 2)
    return host, int(pid)


def describe_environment(manifest: Manifest, folder: Path) -> None:
    """Fill packages, devices, settings and environment of the manifest from what the captured processes noted."""
    events = Run.open(folder).read("events", ["kind", "detail"], filters=pc.field("kind") == "environment")
    for text in events["detail"].to_pylist():
        facts: dict[str, Any] = json.loads(text)
        manifest.packages.update(facts.get("packages", {}))
        manifest.settings.update(facts.get("settings", {}))
        manifest.settings.update({k: facts[k] for k in ("python", "platform", "threads") if k in facts})
        manifest.environment.update(facts.get("environment", {}))
        manifest.devices = sorted({*manifest.devices, *facts.get("devices", [])})


def link_calls(folder: Path) -> None:
    """Find which engine call produced what, once and for all readers (``rlaudit.derived``); nothing where there were no calls."""
    Run.open(folder).keep_derived()
