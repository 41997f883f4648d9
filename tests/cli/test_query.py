"""rlaudit query: the same result in every format, nothing changed, one clear message where it can't be had."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest

DELTAS = "select sequence_id, position, rollout_logp, trainer_logp, delta from tokens order by sequence_id, position"


def parse_strictly(text: str):
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_table_shows_missing_values_as_dashes_and_counts_the_rows(cli, run: Path) -> None:
    outcome = cli("query", run, DELTAS)
    assert outcome.status == 0
    assert [line.split() for line in outcome.out.splitlines()] == [
        ["sequence_id", "position", "rollout_logp", "trainer_logp", "delta"],
        ["a", "0", "-1", "-1.25", "-0.25"],
        ["a", "1", "–", "-2", "–"],
        ["a", "2", "-0.5", "-inf", "-inf"],
        ["b", "0", "-3", "-3.5", "-0.5"],
        ["(4", "rows)"],
    ]


def test_json_is_strictly_valid_with_null_for_missing_and_text_for_infinities(cli, run: Path) -> None:
    rows = parse_strictly(cli("query", run, DELTAS, "--format", "json").out)
    assert [row["delta"] for row in rows] == [-0.25, None, "-Infinity", -0.5]
    assert parse_strictly(cli("query", run, "select 'nan'::double as x", "-f", "json").out) == [{"x": "NaN"}]
    assert parse_strictly(cli("query", run, "select 1 as x where false", "-f", "json").out) == []


def test_json_has_a_value_for_every_type_of_duckdb_that_a_query_can_return(cli, run: Path) -> None:
    sql = """
        select 170141183460469231731687303715884105727::hugeint as h, 1.50::decimal(4, 2) as d, '\\x01\\xFF'::blob as b,
               timestamp '2026-01-02 03:04:05' as t, interval 90 second as i, [1, null] as l, {'a': 'nan'::double} as s, true as y,
               'é' as u, map {'k': 1} as m, date '2026-01-02' as e
    """
    assert parse_strictly(cli("query", run, sql, "-f", "json").out) == [
        {
            "h": 170141183460469231731687303715884105727,
            "d": 1.5,
            "b": "01ff",
            "t": "2026-01-02T03:04:05",
            "i": 90.0,
            "l": [1, None],
            "s": {"a": "NaN"},
            "y": True,
            "u": "é",
            "m": {"k": 1},
            "e": "2026-01-02",
        }
    ]


def test_csv_tells_missing_from_empty_and_reads_back_what_was_asked(cli, run: Path) -> None:
    out = cli("query", run, "select null as n, '' as e, 'a,\"b\"\nc' as t, 0.1::double as d, 'nan'::double as x", "-f", "csv").out
    assert out.splitlines()[1].startswith(',"",')
    row = next(csv.DictReader(io.StringIO(out)))
    assert (row["n"], row["e"], row["t"], float(row["d"])) == ("", "", 'a,"b"\nc', 0.1)
    assert math.isnan(float(row["x"]))


def test_parquet_keeps_types_and_rows_of_several_batches(cli, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.parquet"
    assert cli("query", run, "select i as n, i * 0.5::double as x from range(250000) t(i)", "-f", "parquet", "-o", file).status == 0
    table = pq.read_table(file)
    assert [str(field.type) for field in table.schema] == ["int64", "double"]
    assert table.num_rows == 250_000
    assert table["x"][-1].as_py() == 249_999 * 0.5


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_two_columns_of_one_name_both_survive(cli, run: Path, tmp_path: Path, format: str) -> None:
    file = tmp_path / "out"
    assert cli("query", run, "select 1 as step, 2 as step", "-f", format, "-o", file).status == 0
    if format == "parquet":
        assert pq.read_table(file).to_pylist() == [{"step": 1, "step_1": 2}]
    elif format == "json":
        assert json.loads(file.read_text()) == [{"step": 1, "step_1": 2}]
    else:
        assert file.read_text() == "step,step_1\n1,2\n"


def test_a_long_table_is_cut_with_a_note_and_whole_on_request(cli, run: Path) -> None:
    sql = "select i from range(300) t(i)"
    assert "(200 rows shown; there are more: --rows 0 prints all" in cli("query", run, sql).out
    assert cli("query", run, sql, "--rows", "0").out.splitlines()[-1] == "(300 rows)"
    assert len(cli("query", run, sql, "-f", "csv").out.splitlines()) == 301


def test_what_is_not_one_does_not_look_like_one_in_a_table(cli, run: Path) -> None:
    assert cli("query", run, "select 0.99999968::double as r").out.splitlines()[1].strip() == "0.99999968"


def test_text_from_a_run_can_not_steer_the_terminal(cli, run: Path) -> None:
    assert "\\x1b[31m" in cli("query", run, "select chr(27) || '[31m' as t").out


def test_several_runs_are_schemas_under_their_names(cli, run: Path) -> None:
    sql = "select count(*) as n from a.sequences join b.sequences using (sequence_id)"
    assert cli("query", f"a={run}", f"b={run}", sql, "-f", "csv").out == "n\n3\n"


def test_several_runs_without_names_are_refused(cli, run: Path) -> None:
    outcome = cli("query", run, run, "select 1")
    assert outcome.status == 2
    assert "several runs need names" in outcome.err
    assert "two runs are called 'a'" in cli("query", f"a={run}", f"a={run}", "select 1").err


def test_without_sql_the_query_comes_from_standard_input(cli, run: Path) -> None:
    assert cli("query", run, "-f", "csv", stdin="select 1 as x").out == "x\n1\n"


def test_settings_may_stand_before_the_query_but_no_second_query(cli, run: Path) -> None:
    assert cli("query", run, "set threads = 1; select 1 as x", "-f", "csv").out == "x\n1\n"
    outcome = cli("query", run, "select 1; select 2")
    assert outcome.status == 2
    assert "several queries" in outcome.err
    assert outcome.out == ""


@pytest.mark.parametrize("sql", ["copy (select 1) to '{file}'", "attach '{file}' as x", "export database '{file}'"])
def test_a_query_can_not_write_files(cli, run: Path, tmp_path: Path, sql: str) -> None:
    file = tmp_path / "written"
    outcome = cli("query", run, sql.format(file=file))
    assert outcome.status == 2
    assert "queries only read" in outcome.err
    assert not file.exists()


@pytest.mark.parametrize("format", ["table", "csv", "json", "parquet"])
def test_a_query_that_fails_leaves_one_message_and_no_file(cli, run: Path, tmp_path: Path, format: str) -> None:
    file = tmp_path / "out"
    outcome = cli("query", run, "select error('boom') from range(3)", "-f", format, "-o", file)
    assert outcome.status == 2
    assert outcome.err.startswith("rlaudit: ")
    assert "boom" in outcome.err
    assert "Traceback" not in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_a_failing_query_leaves_an_earlier_output_file_as_it_was(cli, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    file.write_text("precious")
    cli("query", run, "select error('boom')", "-f", "csv", "-o", file)
    assert file.read_text() == "precious"


def test_an_unknown_column_is_explained_with_candidates(cli, run: Path) -> None:
    outcome = cli("query", run, "select deltta from tokens")
    assert outcome.status == 2
    assert "deltta" in outcome.err
    assert "delta" in outcome.err.split("Candidate bindings", 1)[1]


def test_an_output_that_can_not_be_written_is_one_message(cli, run: Path, tmp_path: Path) -> None:
    outcome = cli("query", run, "select 1", "-f", "csv", "-o", tmp_path / "no" / "such" / "file.csv")
    assert outcome.status == 2
    assert outcome.err.startswith("rlaudit: can't write")


@pytest.mark.parametrize(("place", "reason"), [("missing", "does not exist"), ("empty", "holds no run"), ("file", "is a file")])
def test_what_is_no_run_is_named_with_the_reason(cli, tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    outcome = cli("query", tmp_path / place, "select 1")
    assert outcome.status == 2
    assert outcome.err.startswith("rlaudit: ")
    assert str(tmp_path / place) in outcome.err
    assert reason in outcome.err
    assert len(outcome.err.splitlines()) == 1
