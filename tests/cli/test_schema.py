"""rlaudit schema: every table, view and column, with what it means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlaudit import schema
from rlaudit.cli.views import views
from rlaudit.run import Run


@pytest.mark.parametrize("table", [*schema.BY_NAME, *(view.name for view in views())])
def test_every_table_and_view_can_be_described(cli, table: str) -> None:
    out = cli("schema", table).out
    columns = schema.BY_NAME[table].columns if table in schema.BY_NAME else next(v for v in views() if v.name == table).columns
    described = [line.split()[0] for line in out.splitlines() if line.startswith("  ") and not line.startswith("   ")]
    assert described == [column.name for column in columns]


@pytest.mark.parametrize("view", views(), ids=lambda view: view.name)
def test_a_views_documented_columns_are_its_columns(run: Path, view) -> None:
    connection = Run.open(run).connect()
    actual = [row[0] for row in connection.execute(f"describe {view.name}").fetchall()]
    assert [column.name for column in view.columns] == actual


def test_json_has_tables_views_and_macros(cli) -> None:
    document = json.loads(cli("schema", "--format", "json").out)
    assert document["format_version"] == schema.FORMAT_VERSION
    assert [table["name"] for table in document["tables"]] == list(schema.BY_NAME)
    assert "k3(delta)" in [macro["call"] for macro in document["macros"]]
    delta = next(c for view in document["views"] if view["name"] == "tokens" for c in view["columns"] if c["name"] == "delta")
    assert delta["unit"] == "nats"


def test_an_unknown_table_is_refused_with_the_known_ones(cli) -> None:
    outcome = cli("schema", "tokns")
    assert outcome.status == 2
    assert "sequences" in outcome.err
    assert "tokens" in outcome.err
