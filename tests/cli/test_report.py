"""rlaudit report: every format of a real run, and every query that it shows runs and gives the report's own numbers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from tests.synthetic import experts_row, write_run

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "report.schema.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of noisy log-probabilities and routing, with a null, a NaN and a sequence of another length."""
    random = np.random.default_rng(0)
    sequences, scores, routing = [], [], []
    for step in range(3):
        for number in range(6):
            name, length = f"s{step}-{number}", 20
            rollout = -random.exponential(1.0, length).astype(np.float32)
            trainer = np.minimum(rollout + random.normal(0, 0.1, length), 0).astype(np.float32)
            sequences.append({"step": step, "sequence_id": name, "response_tokens": random.integers(0, 99, length).tolist()})
            recorded = {"rollout": rollout.tolist(), "trainer": trainer.tolist(), "update": trainer.tolist()}
            if name == "s1-0":
                recorded["rollout"][3] = None
                recorded["trainer"][4] = float("nan")
            if name == "s2-0":
                recorded["rollout"].pop()
            scores += [{"step": step, "sequence_id": name, "source": source, "logprobs": values} for source, values in recorded.items()]
            experts = np.argsort(random.random((length + 2, 3, 8)), axis=-1)[:, :, :2]
            flipped = experts.copy()
            flipped[5, 1] = (flipped[5, 1] + 1) % 8
            routing += [
                experts_row(name, "rollout", experts, num_experts=8, step=step),
                experts_row(name, "trainer", flipped, num_experts=8, step=step),
            ]
    folder = tmp_path_factory.mktemp("audited") / "run"
    write_run(folder, sequences=sequences, scores=scores, routing=routing)
    return folder


@pytest.fixture
def document(cli, audited: Path) -> dict:
    return json.loads(cli("report", audited, "--format", "json").out)


def test_json_of_a_run_is_valid_under_the_published_schema(document: dict) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert {finding["code"] for finding in document["findings"]} >= {"NONFINITE_LOGP", "LEN_MISMATCH", "LOGP_MISSING"}


def test_every_query_that_the_report_shows_runs_as_it_stands(cli, audited: Path, document: dict) -> None:
    shown = [finding["sql"] for finding in document["findings"] if finding["sql"]] + [query["sql"] for query in document["queries"]]
    assert len(shown) >= 8
    for sql in shown:
        outcome = cli("query", audited, sql, "--format", "json")
        assert outcome.status == 0, f"{sql}\n{outcome.err}"
        json.loads(outcome.out)


def test_the_queries_give_the_numbers_of_the_report(cli, audited: Path, document: dict) -> None:
    queries = {query["title"]: query["sql"] for query in document["queries"]}

    def answer(title: str) -> list[dict]:
        return json.loads(cli("query", audited, queries[title], "--format", "json").out)

    overall = document["metrics"]["overall"]
    [whole] = answer("Metrics over the run at equal policy version")
    compared = [name for name in whole if name in overall]
    assert len(compared) >= 15
    for name in compared:
        assert whole[name] == pytest.approx(overall[name], rel=1e-6), name
    for ours, theirs in zip(document["metrics"]["by_step"], answer("Metrics by step"), strict=True):
        assert (ours["step"], ours["tokens"]) == (theirs["step"], theirs["tokens"])
        assert theirs["k3"] == pytest.approx(ours["values"]["k3"], rel=1e-6)
    for ours, theirs in zip(document["routing"]["by_layer"], answer("Routing by layer"), strict=True):
        assert (ours["layer"], ours["tokens"]) == (theirs["layer"], theirs["tokens"])
        assert theirs["disagreement"] == pytest.approx(ours["disagreement"])


def test_the_commands_at_the_end_of_the_report_can_be_typed(cli, audited: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shlex

    monkeypatch.chdir(audited.parent)
    end = cli("report", "run").out.split("\nNext\n")[1]
    text = "\n".join(line for line in end.splitlines() if not line.endswith(":"))
    commands = [part for part in text.split("    rlaudit ") if part.strip()]
    assert len(commands) == 3
    for command in commands:
        outcome = cli(*shlex.split(command))
        assert outcome.status == 0, outcome.err
    assert (audited.parent / "report.md").read_text(encoding="utf-8").startswith("### ")


def test_sql_is_printed_on_request(cli, audited: Path) -> None:
    assert "quantile_cont" not in cli("report", audited).out.split("The same numbers by SQL")[1].split("\nNext\n")[0]
    assert "quantile_cont" in cli("report", audited, "--sql").out.split("The same numbers by SQL")[1].split("\nNext\n")[0]


def test_a_report_for_a_file_has_no_colour_and_leaves_standard_output_empty(cli, audited: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.txt"
    outcome = cli("report", audited, "--output", file)
    assert (outcome.status, outcome.out) == (0, "")
    assert file.read_text(encoding="utf-8").startswith("FAIL  ")
    assert "\x1b" not in file.read_text(encoding="utf-8")


def test_a_run_in_which_nothing_can_be_compared_is_inconclusive_and_never_ok(cli, tmp_path: Path) -> None:
    write_run(tmp_path / "empty")
    outcome = cli("report", tmp_path / "empty")
    assert outcome.status == 0
    assert outcome.out.startswith("INCONCLUSIVE  ")
    assert "rlaudit info" in outcome.out.split("\nNext\n")[1]
    assert json.loads(cli("report", tmp_path / "empty", "-f", "json").out)["verdict"]["status"] == "INCONCLUSIVE"


def test_a_segment_that_can_not_be_read_is_one_message_with_what_to_do(cli, audited: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(audited, copy)
    segment = next((copy / "scores").iterdir())
    segment.write_bytes(segment.read_bytes()[:100])
    outcome = cli("report", copy)
    assert outcome.status == 2
    assert outcome.err.startswith("rlaudit: ")
    assert segment.name in outcome.err
    assert "move it out of the run's folder" in outcome.err.lower()


def test_a_run_in_a_folder_that_may_not_be_written_is_audited_all_the_same(cli, audited: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in audited.rglob("*"))
    audited.chmod(0o500)
    try:
        assert cli("report", audited).status == 0
        assert cli("query", audited, "select count(*) from tokens").status == 0
    finally:
        audited.chmod(0o700)
    assert sorted((path, path.stat().st_mtime_ns) for path in audited.rglob("*")) == before
