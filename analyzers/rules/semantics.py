"""LOGP_SEMANTICS_DIFFER: by their own labels the two sides' log-probabilities are of different distributions.

Labels only: what the numbers say is the importance ratio's business. Modes that differ in name but not in effect (raw and
tempered at temperature 1, tempered and processed without truncation) are no finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlaudit.analyzers.measured import Measured
from rlaudit.findings import Evidence, Finding

SQL = """SELECT source, temperature, logprob_mode, count(*) AS rows FROM scores WHERE source IN ('rollout', 'trainer', 'update')
GROUP BY ALL ORDER BY ALL"""


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """Known temperatures or modes that differ, where the difference has an effect."""
    rollout = _labels(measured, ("rollout",))
    trainer = _labels(measured, ("trainer",) if measured.has_source("trainer") else ("update",))
    found = []
    if rollout["temperature"] and trainer["temperature"] and set(rollout["temperature"]) != set(trainer["temperature"]):
        found.append(
            _finding(
                f"The rollout's log-probabilities are at temperature {_listed(rollout['temperature'])}, the trainer's at "
                f"{_listed(trainer['temperature'])}.",
                rollout,
                trainer,
                "Divide the trainer's logits by the sampling temperature, or have the engine return log-probabilities after "
                "it (vLLM: logprobs_mode=processed_logprobs).",
            )
        )
    modes = {*rollout["logprob_mode"], *trainer["logprob_mode"]}
    effective = {_effective(measured, mode) for mode in modes}
    if rollout["logprob_mode"] and trainer["logprob_mode"] and len(effective) > 1 and not found:
        found.append(
            _finding(
                f"The rollout's log-probabilities are {_listed(rollout['logprob_mode'])}, the trainer's "
                f"{_listed(trainer['logprob_mode'])}, and sampling makes the two differ.",
                rollout,
                trainer,
                "Sample without top-p, top-k, min-p and penalties, or apply the same ones on both sides.",
            )
        )
    return found


def _labels(measured: Measured, sources: tuple[str, ...]) -> dict[str, list[Any]]:
    return {
        column: [value for source in sources for value in measured.values(column, source)] for column in ("temperature", "logprob_mode")
    }


def _effective(measured: Measured, mode: str) -> str:
    """The mode with names dropped that change nothing under the run's sampling parameters (unknown ones change nothing)."""
    truncated = (
        any(value < 1.0 for value in measured.sampling_values("top_p"))
        or any(value > 0 for value in measured.sampling_values("top_k"))
        or any(value > 0.0 for value in measured.sampling_values("min_p"))
        or any(value != 1.0 for value in measured.sampling_values("repetition_penalty"))
    )
    tempered = any(value != 1.0 for value in measured.sampling_values("temperature"))
    if mode == "processed" and not truncated:
        mode = "tempered"
    return "raw" if mode == "tempered" and not tempered else mode


def _listed(values: Sequence[object]) -> str:
    return " and ".join(str(value) for value in values)


def _finding(title: str, rollout: dict[str, list[Any]], trainer: dict[str, list[Any]], remedy: str) -> Finding:
    evidence = tuple(
        Evidence(f"{side} {column.replace('_', ' ')}", _listed(labels[column]) or None)
        for side, labels in (("rollout", rollout), ("trainer", trainer))
        for column in ("temperature", "logprob_mode")
    )
    return Finding("LOGP_SEMANTICS_DIFFER", "fail", title, evidence, sql=SQL, next=(remedy,))
