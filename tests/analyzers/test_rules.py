"""Each rule finds the kind of fault that it is for, keeps quiet about its neighbours, and shows SQL that runs as it stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlaudit.analyzers.audit import build_report
from rlaudit.analyzers.results import Report
from rlaudit.findings import Finding
from rlaudit.run import Run
from tests.synthetic import experts_row, write_run

Array = np.ndarray[Any, Any]
STEPS, SEQUENCES, LENGTH, VOCABULARY = 3, 16, 40, 32


class World:
    """A policy with a small vocabulary, sampled for real, so that importance ratios mean what they mean.

    Attributes are arrays (sequence, token) that a test changes before it writes the run.
    """

    def __init__(self, noise: float = 0.0, *, temperature: float = 1.0, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        n = STEPS * SEQUENCES
        self.logits = self.rng.normal(0, 2, (n, LENGTH, VOCABULARY))
        sampled = self.rng.gumbel(size=self.logits.shape) + self.logits / temperature
        self.tokens = sampled.argmax(-1)
        self.rollout = self.score(self.logits / temperature)
        self.trainer = self.score((self.logits + noise * self.rng.normal(size=self.logits.shape)) / temperature)
        self.sequences: list[dict[str, Any]] = [
            {
                "step": i // SEQUENCES, "sequence_id": f"s{i}", "response_tokens": self.tokens[i].tolist(), "prompt_tokens": [1, 2, 3],
                "temperature": temperature, "top_p": 1.0, "top_k": 0,
            }
            for i in range(n)
        ]  # fmt: skip
        self.rollout_labels: dict[str, Any] = {"temperature": temperature, "logprob_mode": "processed", "dtype": "float32"}
        self.trainer_labels: dict[str, Any] = {"temperature": temperature, "logprob_mode": "tempered", "dtype": "float32"}
        self.tables: dict[str, list[dict[str, Any]]] = {}

    def score(self, logits: Array) -> Array:
        """Log-probabilities of the sampled tokens."""
        logps = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return np.take_along_axis(logps, self.tokens[..., None], -1)[..., 0].astype(np.float32)

    def scores(self) -> list[dict[str, Any]]:
        """Rows of the scores table."""
        sides = (("rollout", self.rollout, self.rollout_labels), ("trainer", self.trainer, self.trainer_labels))
        return [
            {"step": row["step"], "sequence_id": row["sequence_id"], "source": source, "logprobs": values[i].tolist(), **labels}
            for source, values, labels in sides
            for i, row in enumerate(self.sequences)
        ]

    def write(self, path: Path, scores: list[dict[str, Any]] | None = None) -> Run:
        return write_run(path / "run", sequences=self.sequences, scores=scores or self.scores(), **self.tables)

    def report(self, path: Path, scores: list[dict[str, Any]] | None = None) -> Report:
        """The run's report; every query that it shows has run."""
        run = self.write(path, scores)
        report = build_report(run)
        connection = run.connect()
        for finding in report.findings:
            if finding.sql:
                connection.execute(finding.sql).fetchall()
        connection.close()
        return report


def codes(report: Report, *severities: str) -> list[str]:
    return [finding.code for finding in report.findings if not severities or finding.severity in severities]


def the(report: Report, code: str) -> Finding:
    (finding,) = [finding for finding in report.findings if finding.code == code]
    return finding


def evidence(finding: Finding, start: str) -> Any:
    (value,) = [item.value for item in finding.evidence if item.label.startswith(start)]
    return value


def rows_of(run: Run, finding: Finding) -> list[Any]:
    assert finding.sql is not None
    return run.connect().execute(finding.sql).fetchall()


def test_a_healthy_float32_run_has_no_findings(tmp_path: Path) -> None:
    report = World(1e-6).report(tmp_path)
    assert (report.verdict.status, codes(report)) == ("OK", [])


def test_a_healthy_run_at_another_temperature_has_no_findings(tmp_path: Path) -> None:
    assert codes(World(1e-6, temperature=0.7).report(tmp_path)) == []


def test_noise_below_the_published_line_is_no_finding(tmp_path: Path) -> None:
    report = World(0.02).report(tmp_path)
    assert 0.005 < (report.overall["logp_diff_mean"] or 0) < 0.05
    assert (report.verdict.status, codes(report)) == ("OK", [])


def test_noise_above_the_line_is_named_as_numerics_of_the_dtype_and_nothing_else(tmp_path: Path) -> None:
    world = World(0.15)
    world.rollout_labels["dtype"] = world.trainer_labels["dtype"] = "bfloat16"
    report = world.report(tmp_path)
    assert (report.verdict.status, codes(report)) == ("WARN", ["NUMERICS_PRECISION"])
    finding = the(report, "NUMERICS_PRECISION")
    assert "bfloat16" in finding.title
    assert evidence(finding, "mean importance ratio") == pytest.approx(1.0, abs=0.02)  # the semantics are excluded by this
    assert evidence(finding, "mean |Δ log p|") == report.overall["logp_diff_mean"]


def with_floor(world: World, noise: float) -> list[dict[str, Any]]:
    """Scores with an update evaluation that repeats the trainer's up to noise."""
    repeated = world.trainer * (1 + noise * world.rng.normal(size=world.trainer.shape))
    update = [
        {"step": row["step"], "sequence_id": row["sequence_id"], "source": "update", "logprobs": repeated[i].tolist()}
        for i, row in enumerate(world.sequences)
    ]
    return world.scores() + update


def test_the_level_is_set_against_the_measured_noise_floor(tmp_path: Path) -> None:
    world = World(0.15)
    report = world.report(tmp_path, with_floor(world, 0.01))
    assert report.noise_floor is not None
    floor, level = report.noise_floor.values["logp_diff_mean"], report.overall["logp_diff_mean"]
    assert floor is not None
    assert level is not None
    finding = the(report, "NUMERICS_PRECISION")
    assert evidence(finding, "level over noise floor") == pytest.approx(level / floor)
    assert f"{level / floor:.1f} times the trainer's own noise floor" in finding.title


def test_a_trainer_as_noisy_as_the_difference_is_said_to_be(tmp_path: Path) -> None:
    world = World(0.15)
    assert "of which the trainer alone shows" in the(world.report(tmp_path, with_floor(world, 0.1)), "NUMERICS_PRECISION").title


def test_without_a_second_trainer_evaluation_the_missing_floor_is_said(tmp_path: Path) -> None:
    report = World(0.15).report(tmp_path)
    assert any("No noise floor" in reason for reason in report.withheld)


def test_raw_rollout_log_probabilities_show_in_the_importance_ratio_and_not_as_numerics(tmp_path: Path) -> None:
    world = World(1e-6, temperature=0.7)
    world.rollout = world.score(world.logits)  # before temperature, whatever the label says
    report = world.report(tmp_path)
    assert codes(report) == ["IMPORTANCE_RATIO_OFF"]
    assert evidence(the(report, "IMPORTANCE_RATIO_OFF"), "mean importance ratio") > 1.1
    assert any("Numerics are not judged" in reason for reason in report.withheld)


def test_renormalised_truncation_shows_as_a_ratio_below_one(tmp_path: Path) -> None:
    world = World()
    world.rollout = (world.trainer - np.log(0.8)).clip(max=0)  # top-p kept 0.8 of the mass, the rollout divided by it
    assert evidence(the(world.report(tmp_path), "IMPORTANCE_RATIO_OFF"), "mean importance ratio") < 0.9


def test_a_heavy_tail_in_few_sequences_does_not_pass_for_wrong_semantics(tmp_path: Path) -> None:
    world = World(0.02)
    world.trainer[0, :20] = world.rollout[0, :20].clip(max=-1e-3) * 0.05  # one sequence with ratios far above 1
    assert "IMPORTANCE_RATIO_OFF" not in codes(world.report(tmp_path))


@pytest.mark.parametrize(("rollout", "trainer", "found"), [(0.7, 1.0, True), (0.7, 0.7, False), (None, 1.0, False)])
def test_labelled_temperatures_that_differ_are_a_finding(tmp_path: Path, rollout: float | None, trainer: float, found: bool) -> None:
    world = World(1e-6)
    world.rollout_labels["temperature"], world.trainer_labels["temperature"] = rollout, trainer
    assert ("LOGP_SEMANTICS_DIFFER" in codes(world.report(tmp_path))) is found


@pytest.mark.parametrize(
    ("rollout", "trainer", "sampling", "found"),
    [
        ("processed", "tempered", {"top_p": 1.0, "top_k": 0}, False),  # nothing is truncated
        ("processed", "tempered", {"top_p": 0.9}, True),
        ("processed", "tempered", {"top_k": 50}, True),
        ("raw", "tempered", {"temperature": 1.0}, False),
        ("raw", "tempered", {"temperature": 0.7}, True),
        ("raw", "processed", {"temperature": 1.0, "top_p": 1.0}, False),
    ],
)
def test_modes_are_a_finding_only_where_sampling_makes_them_differ(
    tmp_path: Path, rollout: str, trainer: str, sampling: dict[str, Any], found: bool
) -> None:
    world = World(1e-6)
    world.rollout_labels |= {"logprob_mode": rollout, "temperature": None}
    world.trainer_labels |= {"logprob_mode": trainer, "temperature": None}
    for row in world.sequences:
        row.update(sampling)
    assert ("LOGP_SEMANTICS_DIFFER" in codes(world.report(tmp_path))) is found


def test_nan_and_infinite_log_probabilities_fail_and_are_left_out(tmp_path: Path) -> None:
    world = World(1e-6)
    world.trainer[3, 5], world.rollout[40, 1] = -np.inf, np.nan
    report = world.report(tmp_path)
    assert (report.verdict.status, codes(report)) == ("FAIL", ["NONFINITE_LOGP"])
    finding = the(report, "NONFINITE_LOGP")
    assert (evidence(finding, "on the rollout"), evidence(finding, "on the trainer")) == (1, 1)
    assert finding.where == {"steps": [0, 2]}
    assert report.coverage.compared_tokens == STEPS * SEQUENCES * LENGTH - 2
    assert len(rows_of(world.write(tmp_path / "again"), finding)) == 2


def test_zero_padding_fails_but_certain_tokens_do_not(tmp_path: Path) -> None:
    world = World(1e-6)
    world.rollout[:, :2] = world.trainer[:, :2] = 0.0  # both sides certain
    assert codes(world.report(tmp_path / "certain")) == []
    world.rollout[::4, 2] = 0.0  # a placeholder on one side
    report = world.report(tmp_path / "padded")
    assert (report.verdict.status, "LOGP_CONSTANT_ZERO" in codes(report)) == ("FAIL", True)
    assert the(report, "LOGP_CONSTANT_ZERO").where == {"side": "rollout"}


def test_zeros_on_both_sides_everywhere_are_no_agreement(tmp_path: Path) -> None:
    world = World()
    world.rollout[:] = world.trainer[:] = 0.0
    report = world.report(tmp_path)
    assert (report.verdict.status, codes(report)) == ("FAIL", ["LOGP_CONSTANT_ZERO"])


def test_positive_log_probabilities_fail(tmp_path: Path) -> None:
    world = World(1e-6)
    world.rollout = -world.rollout
    assert codes(world.report(tmp_path), "fail")[0] == "LOGP_POSITIVE"


def test_missing_values_are_information_while_few_and_a_warning_when_many(tmp_path: Path) -> None:
    world = World(1e-6)
    scores = world.scores()
    scores[0]["logprobs"][3] = None
    assert codes(world.report(tmp_path / "few", scores)) == ["LOGP_MISSING"]
    assert the(world.report(tmp_path / "few2", scores), "LOGP_MISSING").severity == "info"
    for row in scores[::2]:
        row["logprobs"][3] = None
    assert the(world.report(tmp_path / "many", scores), "LOGP_MISSING").severity == "warn"


def test_a_shorter_list_fails_and_names_the_sequence(tmp_path: Path) -> None:
    world = World(1e-6)
    scores = world.scores()
    scores[5]["logprobs"] = scores[5]["logprobs"][:-1]
    report = world.report(tmp_path, scores)
    assert (report.verdict.status, codes(report)) == ("FAIL", ["LEN_MISMATCH"])
    finding = the(report, "LEN_MISMATCH")
    assert finding.where == {"steps": [0], "sequences": ["s5"]}
    assert [row[1] for row in rows_of(Run.open(tmp_path / "run"), finding)] == ["s5"]


def test_unscored_sequences_warn_and_are_listed_by_the_query(tmp_path: Path) -> None:
    world = World(1e-6)
    scores = [row for row in world.scores() if not (row["source"] == "trainer" and row["sequence_id"] in ("s1", "s20"))]
    report = world.report(tmp_path, scores)
    assert (report.verdict.status, codes(report)) == ("WARN", ["JOIN_INCOMPLETE"])
    assert (report.coverage.joined, report.coverage.without_trainer) == (46, 2)
    assert [row[1] for row in rows_of(Run.open(tmp_path / "run"), the(report, "JOIN_INCOMPLETE"))] == ["s1", "s20"]


def test_a_run_that_ended_between_rollout_and_update_is_no_warning(tmp_path: Path) -> None:
    world = World(1e-6)
    scores = [row for row in world.scores() if row["source"] == "rollout" or row["step"] < STEPS - 1]
    report = world.report(tmp_path, scores)
    assert report.verdict.status == "OK"
    assert the(report, "JOIN_INCOMPLETE").severity == "info"


def test_nothing_compared_is_inconclusive_and_never_ok(tmp_path: Path) -> None:
    world = World()
    report = world.report(tmp_path, [row for row in world.scores() if row["source"] == "trainer"])
    assert report.verdict.status == "INCONCLUSIVE"
    assert any("None of 48 training sequences" in reason for reason in report.verdict.reasons)
    assert report.queries == {}


def test_an_empty_run_is_inconclusive(tmp_path: Path) -> None:
    report = build_report(write_run(tmp_path / "run"))
    assert report.verdict.status == "INCONCLUSIVE"
    assert report.coverage.sequences == 0


def test_repeated_and_orphaned_rows_warn(tmp_path: Path) -> None:
    world = World(1e-6)
    scores = world.scores()
    report = world.report(tmp_path, [*scores, scores[0], {**scores[1], "sequence_id": "unknown"}])
    assert codes(report, "warn") == ["SCORES_WITHOUT_SEQUENCE", "DUPLICATE_ROWS"]


def test_an_evaluation_that_lacks_a_part_names_the_rank_and_nothing_else(tmp_path: Path) -> None:
    world = World(1e-6)
    scores = []
    for row in world.scores():
        if row["source"] == "rollout":
            scores.append(row)
            continue
        halves = (row["logprobs"][:25], 0, 0), (row["logprobs"][25:], 25, 1)
        scores += [{**row, "logprobs": part, "first_position": first, "rank": rank, "parts": 2} for part, first, rank in halves]
    assert codes(world.report(tmp_path / "whole", scores)) == []
    scores = [row for row in scores if not (row.get("rank") == 1 and row["sequence_id"] == "s9")]
    report = world.report(tmp_path / "broken", scores)
    assert codes(report) == ["PARTS_MISSING"]
    assert the(report, "PARTS_MISSING").where["ranks"] == [1]
    assert report.coverage.compared_tokens == (STEPS * SEQUENCES - 1) * LENGTH


def test_changed_tokens_fail(tmp_path: Path) -> None:
    world = World(1e-6)
    for row in world.sequences:
        name, step, tokens = row["sequence_id"], row["step"], list(row["response_tokens"])
        if name == "s7":
            tokens[4] += 1
        world.tables.setdefault("links", []).append({"step": step, "sequence_id": name, "request_id": name, "end": LENGTH})
        request = {"step": step, "request_id": name, "input_tokens": row["prompt_tokens"], "output_tokens": tokens}
        world.tables.setdefault("requests", []).append(request)
    report = world.report(tmp_path)
    assert (report.verdict.status, codes(report)) == ("FAIL", ["TOKEN_MISMATCH"])
    finding = the(report, "TOKEN_MISMATCH")
    assert "response position 4" in evidence(finding, "example")
    assert [row[1] for row in rows_of(Run.open(tmp_path / "run"), finding)] == ["s7"]


def test_staleness_is_information_and_kept_out_of_the_judgement(tmp_path: Path) -> None:
    world = World(1e-6)
    scores = world.scores()
    for row in scores:
        if row["source"] == "trainer" and row["step"] == 2:
            row["policy_updates"] = 1
            row["logprobs"] = [value - 0.5 for value in row["logprobs"]]  # another policy altogether
    report = world.report(tmp_path, scores)
    assert (report.verdict.status, codes(report)) == ("OK", ["STALENESS"])
    assert "33%" in the(report, "STALENESS").title
    assert (report.overall["logp_diff_max"] or 0) < 1e-4
    assert {step.lag for step in report.by_step} == {0, 1}


def test_unknown_policy_versions_are_compared_and_said_to_be_unknown(tmp_path: Path) -> None:
    world = World(0.15)
    scores = [{**row, "policy_updates": None} for row in world.scores()]
    report = world.report(tmp_path, scores)
    assert report.coverage.compared_tokens == 0  # of known equal version
    assert "policy versions unknown" in the(report, "NUMERICS_PRECISION").title
    assert any("Policy versions are unknown" in reason for reason in report.withheld)


def test_equal_bits_are_good_news(tmp_path: Path) -> None:
    report = World(0.0).report(tmp_path)
    assert (report.verdict.status, codes(report)) == ("OK", ["BITWISE_EQUAL"])


def test_equal_bits_of_a_trainer_that_does_not_repeat_itself_are_suspicious(tmp_path: Path) -> None:
    world = World(0.0)
    report = world.report(tmp_path, with_floor(world, 0.001))
    assert (report.verdict.status, codes(report)) == ("WARN", ["VACUOUS_COMPARISON"])


def event(kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "process": "p", "time": None, **more}


def test_lost_rows_warn_but_sampling_does_not(tmp_path: Path) -> None:
    world = World(1e-6)
    detail = json.dumps({"dropped": {"scores": {"queue full": 3, "not in the sample": 40}}})
    world.tables["events"] = [event("heartbeat", detail=detail)]
    report = world.report(tmp_path)
    assert codes(report) == ["ROWS_DROPPED"]
    assert report.coverage.dropped_rows == 3
    world.tables["events"] = [event("heartbeat", detail=json.dumps({"dropped": {"scores": {"not in the sample": 40}}}))]
    assert codes(world.report(tmp_path / "sampled")) == []


def test_capture_that_stopped_warns_with_its_reason(tmp_path: Path) -> None:
    world = World(1e-6)
    world.tables["events"] = [event("capture_stopped", name="disk", message="the disk is full")]
    assert "the disk is full" in the(world.report(tmp_path), "CAPTURE_STOPPED").title


def with_routing(world: World, flips: float, *, trainer_only: Any = None) -> None:
    """Routing of two layers; a share of the tokens routed differently differs more in log-probability, too."""
    rng = np.random.default_rng(5)
    world.tables["routing"] = []
    for i, row in enumerate(world.sequences):
        ids = rng.permuted(np.tile(np.arange(8), (LENGTH + 3, 2, 1)), axis=2)[..., :2]
        other = ids.copy()
        for position in np.flatnonzero(rng.random(LENGTH + 2) < flips):
            other[position, 1, 0] = next(e for e in range(8) if e not in ids[position, 1])
            token = position - 2  # the forward at absolute position prompt (3) + j - 1 scores token j
            if 0 <= token < LENGTH:
                world.trainer[i, token] = min(world.trainer[i, token] + rng.choice([-0.5, 0.5]), -1e-4)
        if trainer_only is not None:
            trainer_only(other)
        world.tables["routing"] += [
            experts_row(row["sequence_id"], "rollout", ids[: LENGTH + 2], num_experts=8, step=row["step"]),
            experts_row(row["sequence_id"], "trainer", other, num_experts=8, step=row["step"]),
        ]


def test_routing_differences_that_go_with_the_difference_are_named_beside_precision(tmp_path: Path) -> None:
    world = World(0.1)
    with_routing(world, 0.15)
    report = world.report(tmp_path)
    assert codes(report, "warn") == ["NUMERICS_PRECISION", "ROUTING_NOISE"]
    finding = the(report, "ROUTING_NOISE")
    assert finding.where == {"layers": [1]}
    assert evidence(finding, "(token, layer) pairs that differ") == pytest.approx(0.075, abs=0.02)
    assert evidence(finding, "mean |Δ log p| where some") > 2 * evidence(finding, "mean |Δ log p| where no")
    shown = {row[0]: row[2] for row in rows_of(Run.open(tmp_path / "run"), finding)}
    assert shown == {layer.layer: pytest.approx(layer.disagreement) for layer in report.routing_by_layer}


def test_routing_differences_without_a_difference_in_log_probability_are_information(tmp_path: Path) -> None:
    world = World(1e-6)
    saved = world.trainer.copy()
    with_routing(world, 0.02)
    world.trainer = saved
    report = world.report(tmp_path)
    assert (report.verdict.status, codes(report)) == ("OK", ["ROUTING_NOISE"])
    assert the(report, "ROUTING_NOISE").severity == "info"


def test_equal_routing_is_no_finding(tmp_path: Path) -> None:
    world = World(1e-6)
    with_routing(world, 0.0)
    report = world.report(tmp_path)
    assert codes(report) == []
    assert report.overall["routing_disagreement"] == 0.0
    assert report.coverage.routing_joined == 48


def test_placeholder_routing_rows_fail(tmp_path: Path) -> None:
    world = World(1e-6)

    def blank(ids: Array) -> None:
        ids[5] = 0

    with_routing(world, 0.0, trainer_only=blank)
    report = world.report(tmp_path)
    assert (report.verdict.status, codes(report)) == ("FAIL", ["ROUTING_INVALID_ROWS"])
    assert evidence(the(report, "ROUTING_INVALID_ROWS"), "on the trainer") == 48 * 2
    assert len(rows_of(Run.open(tmp_path / "run"), the(report, "ROUTING_INVALID_ROWS"))) == 48 * 2
