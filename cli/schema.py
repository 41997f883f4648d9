"""``rlaudit schema``: what every table and view of a run holds, column by column."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any

import typer

from rlaudit import schema
from rlaudit.cli import run_format
from rlaudit.cli.views import View, ViewColumn, macros, views
from rlaudit.errors import BadOption
from rlaudit.schema import Column, Table

DESCRIPTION_AT_LEAST = 30


class Format(str, Enum):
    """Output formats of the schema."""

    table = "table"
    markdown = "markdown"
    json = "json"


def command(
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="One table or view; without it, the list of all.", show_default=False)
    ] = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="How to print it.")] = Format.table,
) -> None:
    """Say what the tables and views of a run hold: every column with its type, unit and meaning.

    \b
    Examples:
      rlaudit schema
      rlaudit schema tokens
      rlaudit schema --format json
    """
    if format is Format.json:
        text = json.dumps(document(table), indent=2, ensure_ascii=False) + "\n"
    elif format is Format.markdown:
        text = run_format.markdown() if table is None else "\n".join(run_format.section(find(table))) + "\n"
    else:
        text = render_tables() if table is None else render_table(table)
    typer.echo(text, nl=False)


def find(name: str) -> Table | View:
    """The table or view of that name. BadOption lists what there is."""
    known: list[Table | View] = [*schema.TABLES, *views()]
    for item in known:
        if item.name == name:
            return item
    raise BadOption(f"there is no table or view {name!r}; there are {', '.join(item.name for item in known)}")


def render_tables() -> str:
    """Tables, views and macros with one line of description each, as text."""
    width = _page_width()
    lines = ["Tables, as captured"]
    lines += _two_columns([(table.name, f"{table.row}") for table in schema.TABLES], width)
    lines += ["", "Views, computed from them"]
    lines += _two_columns([(view.name, view.description.split(". ")[0]) for view in views()], width)
    lines += ["", "Macros"]
    lines += _two_columns([(macro.call, macro.description) for macro in macros()], width)
    lines += ["", "Columns: rlaudit schema NAME"]
    return "\n".join(lines) + "\n"


def render_table(name: str | None) -> str:
    """The columns of one table or view (None: of all) as text."""
    if name is None:
        return "\n".join(render_table(known) for known in [*schema.BY_NAME, *(view.name for view in views())])
    item = find(name)
    width = _page_width()
    columns: Sequence[Column | ViewColumn] = item.columns
    rows = [(column.name, _type_and_unit(column), column.description) for column in columns]
    first, second = (max(len(row[i]) for row in rows) + 2 for i in (0, 1))
    lines = textwrap.wrap(f"{name}: {_sentence(item)}", width)
    for column, kind, description in rows:
        broken = textwrap.wrap(description, max(width - first - second - 2, DESCRIPTION_AT_LEAST))
        lines.append(f"  {column:<{first}}{kind:<{second}}{broken[0]}")
        lines += [" " * (first + second + 2) + part for part in broken[1:]]
    return "\n".join(lines) + "\n"


def document(name: str | None) -> dict[str, Any]:
    """The schema for scripts: tables and views (all, or one) with their columns."""
    items = [find(name)] if name is not None else [*schema.TABLES, *views()]
    return {
        "format_version": schema.FORMAT_VERSION,
        "tables": [
            {"name": item.name, "row": item.row, "key": list(item.key), "columns": [column._asdict() for column in item.columns]}
            for item in items
            if isinstance(item, Table)
        ],
        "views": [
            {"name": item.name, "description": item.description, "columns": [column._asdict() for column in item.columns]}
            for item in items
            if isinstance(item, View)
        ],
        "macros": [macro._asdict() for macro in macros()] if name is None else [],
    }


def _sentence(item: Table | View) -> str:
    return f"one row is {item.row}. Key: {', '.join(item.key)}." if isinstance(item, Table) else item.description


def _type_and_unit(column: Column | ViewColumn) -> str:
    kind = getattr(column, "type", None)
    unit = f"[{column.unit}]" if column.unit else ""
    return " ".join(part for part in (kind, unit) if part)


def _two_columns(rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    first = max(len(row[0]) for row in rows) + 2
    lines = []
    for name, text in rows:
        broken = textwrap.wrap(text, max(width - first - 2, DESCRIPTION_AT_LEAST))
        lines.append(f"  {name:<{first}}{broken[0]}")
        lines += [" " * (first + 2) + part for part in broken[1:]]
    return lines


def _page_width() -> int:
    return min(shutil.get_terminal_size((110, 24)).columns, 130)
