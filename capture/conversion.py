"""Turns the spools that captured processes leave into segments, and their events into facts of the manifest."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from rlaudit.capture.process import host_name, is_alive
from rlaudit.manifest import Manifest
from rlaudit.run import Run
from rlaudit.segments import convert_spool, iter_spools
from rlaudit.spool import TornSpool
from rlaudit.spool_layout import OPEN_SUFFIX


def convert_and_remove(spool: Path, folder: Path) -> None:
    """Convert a sealed spool and remove it. A spool of which nothing can be read is set aside under ``spool/unreadable``."""
    try:
        convert_spool(spool, folder)
    except TornSpool as error:
        aside = folder / "spool" / "unreadable"
        aside.mkdir(exist_ok=True)
        spool.rename(aside / spool.name)
        sys.stderr.write(f"rlaudit: {error}; set aside in {aside}\n")
        return
    except FileNotFoundError:
        return  # another launcher of this run, on a shared folder, was faster
    spool.unlink(missing_ok=True)


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
    host, pid, _ = spool.stem.rsplit("_", 1)[0].rsplit("-", 2)
    if host != host_name():
        return not all_hosts
    return int(pid) != os.getpid() and is_alive(int(pid))


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
