"""A real vLLM against Hugging Face, audited: the numbers that were measured by hand on the same models, prompts and seeds."""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.engines.vllm_environment import captured, made_models, vllm_commands
from tests.integration.environments import run

pytestmark = pytest.mark.integration

STEPS = {
    ("moe", "float32"): ("float32", "bfloat16"),
    ("moe", "bfloat16"): ("bfloat16", "float32"),
    ("dense", "float32"): ("float32",),
    ("dense", "bfloat16"): ("bfloat16",),
}
"""Model and vLLM's dtype to the reference's dtype of each step."""


class Measured(NamedTuple):
    """Measured outside rlaudit: |Δ log p| (nats), Pearson's r of the probabilities, the k3 estimate, tokens routed otherwise of 376.

    Sums over bfloat16 depend on the order in which a CPU's kernels add, and another kind of CPU loads other kernels.
    """

    model: str
    engine: str
    reference: str
    mean: float
    largest: float
    pearson: float
    k3: float
    routed_otherwise: float | None


BFLOAT16 = (
    Measured("moe", "bfloat16", "bfloat16", 1.37e-2, 1.33e-1, 0.99936, 2.8e-4, 35 / 376),
    Measured("moe", "bfloat16", "float32", 1.69e-2, 1.42e-1, 0.99858, 5.0e-4, 0.104),
    Measured("moe", "float32", "bfloat16", 1.51e-2, 1.34e-1, 0.99971, 3.7e-4, 0.096),
    Measured("dense", "bfloat16", "bfloat16", 1.27e-2, 5.5e-2, 0.99974, 1.4e-4, None),
)


class Audited(NamedTuple):
    folder: Path
    steps: list[dict[str, float]]
    kept: list[dict[str, Any]]


Runs = Callable[[str, str], Audited]


@pytest.fixture(scope="module")
def commands() -> Path:
    return vllm_commands()


@pytest.fixture(scope="module")
def runs(commands: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The audited run of a model and a dtype; each engine is started once."""
    models = made_models(commands, tmp_path_factory.mktemp("models"))

    @functools.cache
    def audited(model: str, dtype: str) -> Audited:
        folder = tmp_path_factory.mktemp(f"{model}-{dtype}")
        references = ",".join(STEPS[model, dtype])
        captured(commands, folder / "run", "vllm_both.py", models / model, dtype, references, folder / "kept.pickle")
        report = json.loads(run([commands / "rlaudit", "report", folder / "run", "--format", "json"]))
        steps = [one["values"] for one in sorted(report["metrics"]["by_step"], key=lambda one: one["step"])]
        return Audited(folder / "run", steps, pickle.loads((folder / "kept.pickle").read_bytes()))

    return audited


def asked(commands: Path, audited: Audited, sql: str) -> dict[str, Any]:
    return json.loads(run([commands / "rlaudit", "query", audited.folder, sql, "--format", "json"]))[0]  # type: ignore[no-any-return]


def routed_otherwise(commands: Path, audited: Audited, step: int) -> float:
    sql = f"""select avg(other::int) as share, count(*) as tokens from (select sequence_id, absolute_position, bool_or(differs) as other
    from routing_pairs where step = {step} and source_a = 'rollout' and source_b = 'trainer' group by all)"""
    answer = asked(commands, audited, sql)
    assert answer["tokens"] == 376
    return float(answer["share"])


@pytest.mark.parametrize("expected", BFLOAT16, ids=lambda row: f"{row.model}-{row.engine}-{row.reference}")
def test_the_report_gives_what_was_measured_where_bfloat16_takes_part(expected: Measured, runs: Runs, commands: Path) -> None:
    audited = runs(expected.model, expected.engine)
    step = STEPS[expected.model, expected.engine].index(expected.reference)
    values = audited.steps[step]
    assert values["logp_diff_mean"] == pytest.approx(expected.mean, rel=0.02)
    assert values["logp_diff_max"] == pytest.approx(expected.largest, rel=0.02)
    assert values["pearson_prob"] == pytest.approx(expected.pearson, abs=2e-5)
    assert values["k3"] == pytest.approx(expected.k3, rel=0.04)  # noted with two digits
    if expected.routed_otherwise is not None:
        assert routed_otherwise(commands, audited, step) == pytest.approx(expected.routed_otherwise, rel=0.02)


@pytest.mark.parametrize("model", ["moe", "dense"])
def test_float32_on_both_sides_agrees_to_its_precision(model: str, runs: Runs, commands: Path) -> None:
    audited = runs(model, "float32")
    values = audited.steps[0]
    assert 0 < values["logp_diff_mean"] < 2e-6
    assert values["logp_diff_max"] < 1e-5
    assert values["pearson_prob"] > 0.99999999
    assert abs(values["k3"]) < 1e-11
    if model == "moe":
        assert routed_otherwise(commands, audited, 0) == 0.0


def test_a_query_over_tokens_gives_the_reports_numbers(runs: Runs, commands: Path) -> None:
    audited = runs("moe", "bfloat16")
    for step, values in enumerate(audited.steps):
        answer = asked(
            commands,
            audited,
            f"""select avg(abs(delta)) as mean, max(abs(delta)) as largest, corr(exp(rollout_logp), exp(trainer_logp)) as pearson,
            avg(exp(delta) - 1 - delta) as k3, count(*) as tokens from tokens where comparable and step = {step}""",
        )
        assert answer["tokens"] == 192
        assert answer["mean"] == pytest.approx(values["logp_diff_mean"], rel=1e-6)
        assert answer["largest"] == pytest.approx(values["logp_diff_max"], rel=1e-6)
        assert answer["pearson"] == pytest.approx(values["pearson_prob"], rel=1e-9)
        assert answer["k3"] == pytest.approx(values["k3"], rel=1e-6)


def test_the_report_gives_what_the_engines_raw_output_gives(runs: Runs, commands: Path) -> None:
    audited = runs("moe", "bfloat16")
    kept = audited.kept[0]
    engine = np.concatenate([one["logprobs"] for one in kept["engine"]])
    reference = np.concatenate(kept["logprobs"])
    delta = reference - engine
    values = audited.steps[0]
    assert values["logp_diff_mean"] == pytest.approx(np.abs(delta).mean(), rel=1e-6)
    assert values["logp_diff_max"] == pytest.approx(np.abs(delta).max(), rel=1e-6)
    assert values["pearson_prob"] == pytest.approx(np.corrcoef(np.exp(engine), np.exp(reference))[0, 1], rel=1e-8)
    assert values["k3"] == pytest.approx(np.mean(np.exp(delta) - 1 - delta), rel=1e-5)
    other = [
        any(set(a) != set(b) for a, b in zip(ours, theirs, strict=True))
        for one, experts in zip(kept["engine"], kept["experts"], strict=True)
        for ours, theirs in zip(one["experts"], experts[:-1], strict=True)  # the last token was never computed by the engine
    ]
    assert routed_otherwise(commands, audited, 0) == pytest.approx(np.mean(other), abs=1e-12)
