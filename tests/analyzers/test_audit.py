"""A report's numbers are the run's: recomputed by the SQL that it shows, whatever the run's layout."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rlaudit.analyzers import grouping, quantiles, rules, thresholds
from rlaudit.analyzers.audit import build_report
from rlaudit.analyzers.catalogue import CATALOGUE
from rlaudit.arrow import arrow_schema
from rlaudit.run import Run
from rlaudit.segments import write_rows
from tests.analyzers.test_rules import LENGTH, SEQUENCES, STEPS, World, with_floor, with_routing
from tests.synthetic import DEFAULTS


def awkward(path: Path) -> Run:
    """A run with everything that statistics must leave out: masks, nulls, NaN, a length mismatch, eval, staleness, two attempts."""
    world = World(0.1)
    with_routing(world, 0.1)
    scores = with_floor(world, 0.01)
    scores[0]["logprobs"][0] = None
    scores[1]["logprobs"][1] = float("nan")
    scores[2]["logprobs"] = scores[2]["logprobs"][:-1]
    for row in scores:
        if row["sequence_id"] in ("s40", "s41") and row["source"] != "rollout":
            row["policy_updates"] = 2
    world.sequences[3]["sampled_mask"] = [j % 3 != 0 for j in range(LENGTH)]
    world.sequences[4]["phase"] = "eval"
    world.sequences.append({**world.sequences[5], "attempt": 1})
    scores += [{**row, "attempt": 1} for row in scores if row["sequence_id"] == "s5"]
    return world.write(path, scores)


def rows(run: Run, sql: str) -> list[dict[str, Any]]:
    cursor = run.connect().execute(sql)
    names = [column[0] for column in cursor.description or []]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def query(report: Any, start: str) -> str:
    (sql,) = [sql for title, sql in report.queries.items() if title.startswith(start)]
    return str(sql)


def test_the_sql_shown_recomputes_every_metric_of_every_step(tmp_path: Path) -> None:
    run = awkward(tmp_path)
    report = build_report(run)
    shown = rows(run, query(report, "Metrics by step"))
    assert len(shown) == len(report.by_step) == 5  # three steps, one of them at two lags, one attempted twice
    for row, step in zip(shown, report.by_step, strict=True):
        assert (row["attempt"], row["step"], row["lag"], row["tokens"]) == (step.attempt, step.step, step.lag, step.tokens)
        assert {name: row[name] for name in step.values} == pytest.approx(step.values, rel=1e-6)
        assert {"pearson_prob", "logp_diff_p999", "prob_diff_p99", "k3", "ess"} <= set(step.values)


def test_the_sql_shown_recomputes_the_metrics_of_the_run(tmp_path: Path) -> None:
    run = awkward(tmp_path)
    report = build_report(run)
    (row,) = rows(run, query(report, "Metrics over the run at equal"))
    assert row["tokens"] == report.coverage.compared_tokens
    ours = {name: value for name, value in report.overall.items() if not name.startswith("routing")}
    assert {name: row[name] for name in ours} == pytest.approx(ours, rel=1e-6)


def test_the_sql_shown_recomputes_routing_by_layer_and_step(tmp_path: Path) -> None:
    run = awkward(tmp_path)
    report = build_report(run)
    by_layer = {row["layer"]: (row["tokens"], row["disagreement"], row["overlap"]) for row in rows(run, query(report, "Routing by layer"))}
    assert by_layer == {layer.layer: pytest.approx((layer.tokens, layer.disagreement, layer.overlap)) for layer in report.routing_by_layer}
    by_step = {row["step"]: (row["tokens"], row["disagreement"], row["any_layer"]) for row in rows(run, query(report, "Routing by step"))}
    assert by_step == {step.step: pytest.approx((step.tokens, step.disagreement, step.any_layer)) for step in report.routing_by_step}


def test_tokens_that_differ_most_are_shown_first(tmp_path: Path) -> None:
    run = awkward(tmp_path)
    report = build_report(run)
    first = rows(run, query(report, "Tokens that differ most"))[0]
    assert abs(first["delta"]) == pytest.approx(report.overall["logp_diff_max"])


def test_coverage_counts_what_is_there(tmp_path: Path) -> None:
    coverage = build_report(awkward(tmp_path)).coverage
    train = STEPS * SEQUENCES - 1 + 1  # one is eval, one was attempted twice
    assert (coverage.steps, coverage.sequences, coverage.joined, coverage.not_consumed) == (STEPS, train, train, 1)
    unsampled = -(-LENGTH // 3)
    assert (coverage.tokens, coverage.sampled_tokens) == (train * LENGTH, train * LENGTH - unsampled)
    # Left out: the null, the NaN, the sequence of another length, and two at another version.
    assert coverage.compared_tokens == coverage.sampled_tokens - 1 - 1 - LENGTH - 2 * LENGTH


def comparable(report: Any) -> Any:
    return replace(report, run="", facts={}, worst_sequences=())


def test_the_number_of_groups_that_are_read_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = awkward(tmp_path)
    whole = build_report(run)
    monkeypatch.setattr(grouping, "GROUP_BYTES", 1)
    assert len(grouping.plan(run)) == STEPS
    parts = build_report(run)
    assert [step.values for step in parts.by_step] == [step.values for step in whole.by_step]
    assert parts.overall == pytest.approx(whole.overall, rel=1e-12)
    assert parts.coverage == whole.coverage
    assert [finding.code for finding in parts.findings] == [finding.code for finding in whole.findings]
    assert parts.worst_sequences == whole.worst_sequences


def test_a_report_is_the_same_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "GROUP_BYTES", 1)
    run = awkward(tmp_path)
    assert comparable(build_report(run)) == comparable(build_report(run))


def test_scores_that_come_late_in_other_segments_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(0.01)
    together = build_report(world.write(tmp_path / "together"))
    folder = Path(world.write(tmp_path / "apart", [row for row in world.scores() if row["source"] == "rollout"]).path)
    late = [{**DEFAULTS["scores"], **row} for row in world.scores() if row["source"] == "trainer"]
    for number, part in enumerate((late[: len(late) // 2 + 3], late[len(late) // 2 + 3 :])):
        write_rows(folder, "scores", pa.Table.from_pylist(part, schema=arrow_schema("scores")), "host-2-0", number)
    monkeypatch.setattr(grouping, "GROUP_BYTES", 1)
    apart = build_report(Run.open(folder))
    assert apart.coverage == together.coverage
    assert [step.values for step in apart.by_step] == [step.values for step in together.by_step]


def test_a_long_run_says_that_its_percentiles_are_approximate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = World(0.1).write(tmp_path)
    exact = build_report(run)
    monkeypatch.setattr(quantiles.Distribution, "KEEP", 100)
    monkeypatch.setattr(quantiles, "STRIDE", 1)
    report = build_report(run)
    assert any("Percentiles over the whole run are from a histogram" in reason for reason in report.withheld)
    assert report.overall["logp_diff_p90"] == pytest.approx(exact.overall["logp_diff_p90"], rel=0.01)
    assert [step.values for step in report.by_step] == [step.values for step in exact.by_step]


def test_the_worst_sequences_are_named_with_the_place_of_their_largest_difference(tmp_path: Path) -> None:
    world = World(1e-6)
    world.sequences[20]["sampled_mask"] = [True] * 10 + [False] + [True] * 29
    world.trainer[20, 10] -= 5  # not sampled: not counted
    world.trainer[20, 30] -= 1
    worst = build_report(world.write(tmp_path)).worst_sequences[0]
    assert (worst.step, worst.sequence_id, worst.tokens, worst.position) == (1, "s20", LENGTH - 1, 30)
    assert worst.logp_diff_max == pytest.approx(1, abs=1e-3)


def trl_numbers(world: World, step: int, in_loss: np.ndarray[Any, Any]) -> tuple[float, float]:
    """trl/trainer/grpo_trainer.py: mean and max of |old - sampling| over the completion mask, NaN left out."""
    rows = slice(step * SEQUENCES, (step + 1) * SEQUENCES)
    delta = np.abs(world.trainer[rows].astype(np.float64) - world.rollout[rows])
    delta = delta[in_loss[rows] & ~np.isnan(delta)]
    return float(np.float32(delta.mean())), float(np.float32(delta.max()))


@pytest.mark.parametrize("every", [1, 2])
def test_trls_own_logged_numbers_are_recomputed_and_compared(tmp_path: Path, every: int) -> None:
    world = World(0.1)
    in_loss = np.ones(world.rollout.shape, bool)
    in_loss[::5, 20:] = False  # truncated completions are masked
    for i, row in enumerate(world.sequences):
        row["loss_mask"] = in_loss[i].tolist()
    scores = world.scores()
    logged = []
    for last in range(every - 1, STEPS, every):  # the trainer logs averages since the last log
        window = [trl_numbers(world, step, in_loss) for step in range(last - every + 1, last + 1)]
        for name, value in zip(("mean", "max"), np.mean(window, 0), strict=True):
            logged.append({"step": last, "name": f"sampling/sampling_logp_difference/{name}", "value": float(value)})
    logged.append({"step": 0, "name": "loss", "value": 1.0})
    world.tables["framework_metrics"] = logged
    checks = build_report(world.write(tmp_path, scores)).framework_checks
    assert len(checks) == len(logged) - 1
    assert all(check.agrees for check in checks)
    world.tables["framework_metrics"] = [{**row, "value": row["value"] * 1.01} for row in logged]
    assert all(check.agrees is False for check in build_report(world.write(tmp_path / "off", scores)).framework_checks)


def test_a_framework_number_without_a_trainer_score_is_not_compared(tmp_path: Path) -> None:
    world = World(0.1)
    world.tables["framework_metrics"] = [{"step": 0, "name": "sampling/sampling_logp_difference/mean", "value": 0.1}]
    scores = [{**row, "source": "update"} if row["source"] == "trainer" else row for row in world.scores()]
    (check,) = build_report(world.write(tmp_path, scores)).framework_checks
    assert (check.ours, check.agrees) == (None, None)


def test_definitions_cover_what_is_printed(tmp_path: Path) -> None:
    report = build_report(awkward(tmp_path))
    assert {definition.name for definition in report.definitions} >= set(report.overall)
    assert list(report.overall) == [name for name in CATALOGUE if name in report.overall]


def test_every_threshold_says_where_it_comes_from() -> None:
    text = Path(thresholds.__file__).read_text(encoding="utf-8")
    for name in (name for name in vars(thresholds) if name.isupper()):
        following = text[text.index(name) :].split("\n\n")[0]
        assert '"""' in following, name


def test_every_rule_module_is_in_the_order_of_rules() -> None:
    folder = Path(rules.__file__).parent
    modules = {importlib.import_module(f"rlaudit.analyzers.rules.{path.stem}") for path in folder.glob("*.py") if path.stem != "__init__"}
    assert set(rules.RULES) == modules
