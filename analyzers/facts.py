"""What a run is, in words: the lines above the numbers of a report."""

from __future__ import annotations

import shlex
import time
from typing import Any

from rlaudit.analyzers.measured import Measured

FRAMEWORKS = ("trl", "verl", "slime", "miles", "transformers", "torch", "vllm", "sglang", "megatron-core", "accelerate", "ray")
"""Distributions whose version says what a run was computed by, in printing order."""


def describe(measured: Measured) -> dict[str, str]:
    """Label to text, in printing order; labels without a known value are left out."""
    manifest = measured.run.manifest
    versions = [f"{name} {manifest.packages[name]}" for name in FRAMEWORKS if name in manifest.packages]
    facts: dict[str, str | None] = {
        "Run": manifest.run_id,
        "Command": shlex.join(manifest.command) or None,
        "Started": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(manifest.started)) if manifest.started else None,
        "Exit status": str(manifest.exit_status) if manifest.exit_status is not None else None,
        "Packages": ", ".join(versions) or None,
        "Devices": ", ".join(manifest.devices) or None,
        "Rollout": _side(measured, "rollout"),
        "Trainer": _side(measured, "trainer"),
        "Update": _side(measured, "update"),
        "Sampling": _sampling(measured),
        "Engine calls": _calls(measured),
    }
    return {label: text for label, text in facts.items() if text}


def _side(measured: Measured, source: str) -> str | None:
    """How a source's log-probabilities were made."""
    parts = [
        _listed(measured.values("backend", source)),
        _listed(measured.values("forward", source)),
        _listed(measured.values("dtype", source)),
        _prefixed("weights ", measured.values("weight_dtype", source)),
        _listed(measured.values("logprob_mode", source)),
        _prefixed("temperature ", measured.values("temperature", source)),
    ]
    return ", ".join(part for part in parts if part) or None


def _sampling(measured: Measured) -> str | None:
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    return ", ".join(part for name in names if (part := _prefixed(f"{name} ", measured.sampling_values(name)))) or None


def _calls(measured: Measured) -> str | None:
    """How many engine calls there are and what became of those that no sequence consumed (a state, not a miss)."""
    calls = measured.calls
    if not calls.calls:
        return None
    rest = ", ".join(f"{count:,} {state}" for state, count in sorted(calls.states.items(), key=lambda item: -item[1]))
    return f"{calls.calls:,}, {calls.linked:,} of them in recorded sequences" + (f"; not consumed: {rest}" if rest else "")


def _listed(values: list[Any]) -> str:
    return " and ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def _prefixed(prefix: str, values: list[Any]) -> str:
    return f"{prefix}{_listed(values)}" if values else ""
