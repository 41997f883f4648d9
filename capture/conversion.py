"""Turns the spools that captured processes leave into segments, and their events into facts of the manifest."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from rlaudit.manifest import Manifest
from rlaudit.run import Run
from rlaudit.segments import convert_spool, iter_spools
from rlaudit.spool import OPEN_SUFFIX, TornSpool


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
    spool.unlink()


def convert_leftovers(folder: Path) -> None:
    """Convert every spool whose process has ended, open ones of processes that were killed included."""
    for spool in list(iter_spools(folder)):
        if spool.suffix == OPEN_SUFFIX and _alive(spool):
            continue
        convert_and_remove(spool, folder)
    for left in (folder / "spool").glob(".usage*"):
        left.unlink(missing_ok=True)


def _alive(spool: Path) -> bool:
    """True where the process that writes this spool still runs, on this host."""
    host, pid, _ = spool.stem.rsplit("_", 1)[0].rsplit("-", 2)
    own = "".join(c if c.isalnum() or c in "-." else "-" for c in socket.gethostname())
    if host != own:
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return int(pid) != os.getpid()


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
