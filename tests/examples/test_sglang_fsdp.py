"""The SGLang and FSDP2 example, run as its page says: what its runs show, read through ``rlaudit report`` and ``rlaudit query``."""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engines.sglang_environment import sglang_commands
from tests.integration.environments import ROOT, run

pytestmark = pytest.mark.integration
COMMANDS = Path(sys.executable).parent


class Captured:
    """A captured run of the example."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @functools.cached_property
    def report(self) -> dict[str, Any]:
        return self._rlaudit("report", self.folder, "--format", "json")

    def query(self, sql: str) -> list[dict[str, Any]]:
        return self._rlaudit("query", self.folder, sql, "--format", "json")

    def _rlaudit(self, *words: str | Path) -> Any:
        return json.loads(run([COMMANDS / "rlaudit", *words]))


class Runs:
    """Runs of the example, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[tuple[str, ...], Captured] = {}

    def __call__(self, *options: str) -> Captured:
        if options not in self._made:
            out = self._folder / ("run" + "".join(options))
            run(
                ["bash", ROOT / "examples" / "sglang_fsdp" / "run.sh", out, "--steps", "2", *options],
                self._folder,
                ENGINE_PYTHON=str(sglang_commands() / "python"),
                PATH=f"{COMMANDS}{os.pathsep}{os.environ['PATH']}",
                OMP_NUM_THREADS="1",
            )
            self._made[options] = Captured(out)
        return self._made[options]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("sglang-fsdp"))


def test_every_sequence_joins_in_float32(runs: Runs) -> None:
    coverage = runs().report["coverage"]
    assert coverage["sequences"] == coverage["joined"] == 2 * 4 * 4  # steps, questions, samples
    assert coverage["compared_tokens"] == coverage["sampled_tokens"] > 0
    assert coverage["routing_joined"] == coverage["sequences"]


def test_engine_and_trainer_agree_in_float32(runs: Runs) -> None:
    overall = runs().report["metrics"]["overall"]
    assert overall["logp_diff_max"] < 1e-4
    assert overall["routing_disagreement"] <= 0.001


def test_the_engine_received_every_version_that_was_sent(runs: Runs) -> None:
    rows = runs().query("select fact, policy_version from weights order by fact, policy_version")
    assert [(row["fact"], row["policy_version"]) for row in rows] == [
        ("received", "step-1"),
        ("received", "step-2"),
        ("sent", "step-1"),
        ("sent", "step-2"),
    ]


def test_bfloat16_differs(runs: Runs) -> None:
    overall = runs("--dtype", "bfloat16").report["metrics"]["overall"]
    assert overall["logp_diff_mean"] > 1e-3
    assert overall["routing_disagreement"] > 0


def test_replayed_routing_is_the_engines_and_brings_the_trainer_nearer(runs: Runs) -> None:
    replayed = runs("--dtype", "bfloat16", "--replay-routing").report["metrics"]["overall"]
    assert replayed["routing_disagreement"] == 0
    assert replayed["logp_diff_mean"] < runs("--dtype", "bfloat16").report["metrics"]["overall"]["logp_diff_mean"]


def test_two_turns_are_linked_to_their_calls_and_clean(runs: Runs) -> None:
    captured = runs("--two-turns")
    turns = captured.query("select turn, count(*) as links from links group by turn order by turn")
    assert turns == [{"turn": 0, "links": 32}, {"turn": 1, "links": 32}]
    assert captured.report["findings"] == []
    assert captured.report["metrics"]["overall"]["logp_diff_max"] < 1e-4


def test_tokens_of_the_tool_are_not_compared(runs: Runs) -> None:
    coverage = runs("--two-turns").report["coverage"]
    assert coverage["tokens"] > coverage["sampled_tokens"] == coverage["compared_tokens"]


def test_a_history_tokenised_anew_is_found(runs: Runs) -> None:
    findings = runs("--two-turns", "--retokenise").report["findings"]
    assert "TOKEN_MISMATCH" in [finding["code"] for finding in findings]
