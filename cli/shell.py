"""``rlaudit shell``: a small SQL prompt on a run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlaudit.cli.query import Format, connect, name_runs
from rlaudit.cli.schema import render_table, render_tables
from rlaudit.errors import BadOption, QueryError

if TYPE_CHECKING:
    import duckdb

PROMPT, CONTINUED = "rlaudit> ", "    ...> "
HELP = """Type SQL and end it with a semicolon; it may span lines. Ctrl-C drops what you typed, or stops a running query.
  .tables          tables and views, and what one row of each is
  .schema [NAME]   columns of a table or view, or of all
  .format FORMAT   how results print: table, csv or json
  .rows N          rows that a table prints at most (0: all)
  .help            this text
  .quit            leave (so does Ctrl-D)
"""


def command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="A run's folder, or several as NAME=RUN.", show_default=False)],
) -> None:
    """Open a SQL prompt on a run. Nothing of the run is changed.

    Statements end with a semicolon. .tables and .schema say what there is, .help the rest. Without a terminal the
    statements are read from standard input, and the first that fails ends the shell with exit status 2.

    \b
    Examples:
      rlaudit shell RUN
      rlaudit shell RUN < questions.sql
    """
    connection = connect(name_runs(runs))
    interactive = sys.stdin.isatty()
    with _history() if interactive else contextlib.nullcontext():
        Shell(connection, interactive=interactive).loop()


class Shell:
    """Reads statements and prints their results until the input ends."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, *, interactive: bool) -> None:
        self.connection = connection
        self.interactive = interactive
        self.format = "table"
        self.most_rows = 40 if interactive else 0

    def loop(self) -> None:
        """Run until end of input or ``.quit``. QueryError and BadOption end a shell that is not interactive."""
        if self.interactive:
            typer.echo("SQL on this run; end with a semicolon. .help explains, .quit leaves.")
        for text in self._statements():
            if text in (".quit", ".exit"):
                return
            try:
                self._run(text)
            except (QueryError, BadOption) as error:
                if not self.interactive:
                    raise
                typer.echo(f"{error}", err=True)
            except KeyboardInterrupt:
                if not self.interactive:
                    raise
                typer.echo("stopped", err=True)

    def _statements(self) -> Iterator[str]:
        """Dot commands and complete statements, in the order typed; the end of the input ends a statement too."""
        typed = ""
        while True:
            try:
                line = self._read(CONTINUED if typed else PROMPT)
            except KeyboardInterrupt:
                if not self.interactive:
                    raise
                typed = ""
                typer.echo("")
                continue
            if line is None:
                if typed.strip():
                    yield typed.strip()
                return
            if not typed and line.strip().startswith("."):
                yield line.strip()
                continue
            typed += line + "\n"
            if complete(typed):
                yield typed.strip()
                typed = ""
            elif not typed.strip():
                typed = ""

    def _read(self, prompt: str) -> str | None:
        if not self.interactive:
            line = sys.stdin.readline()
            return line.rstrip("\n") if line else None
        try:
            return input(prompt)
        except EOFError:
            typer.echo("")
            return None

    def _run(self, text: str) -> None:
        from rlaudit.cli import results

        if text.startswith("."):
            self._dot(*text.split())
            return
        for statement in results.statements(self.connection, text):
            result = results.execute(self.connection, statement)
            if statement.kind != "SET":
                results.write(result, self.format, None, most_rows=self.most_rows)

    def _dot(self, name: str, *arguments: str) -> None:
        first = arguments[0] if arguments else None
        if name == ".help":
            typer.echo(HELP, nl=False)
        elif name == ".tables":
            typer.echo(render_tables(), nl=False)
        elif name == ".schema":
            typer.echo(render_table(first), nl=False)
        elif name == ".format" and first in {f.value for f in Format} - {"parquet"}:
            self.format = str(first)
        elif name == ".rows" and first is not None and first.isdigit():
            self.most_rows = int(first)
        else:
            raise BadOption(f"{' '.join([name, *arguments])!r} is no command of this shell; .help lists them")


def complete(typed: str) -> bool:
    """True where the text ends with a semicolon outside of any quotes and comments."""
    quote: str | None = None
    ended = False
    i = 0
    while i < len(typed):
        two, one = typed[i : i + 2], typed[i]
        if quote is not None:
            if typed.startswith(quote, i):
                i += len(quote)
                quote = None
                continue
        elif two in ("--", "/*"):
            quote = "\n" if two == "--" else "*/"
            i += 2
            continue
        elif one in "'\"":
            quote, ended = one, False
        elif one == ";":
            ended = True
        elif not one.isspace():
            ended = False
        i += 1
    return ended and quote in (None, "\n")


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Line editing, with the history of earlier shells where it can be kept."""
    try:
        import readline
    except ImportError:
        yield
        return
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "rlaudit"
    file = state / "history"
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(2000)
    try:
        yield
    finally:
        try:
            state.mkdir(parents=True, exist_ok=True, mode=0o700)
            readline.write_history_file(file)
        except OSError as error:
            typer.echo(f"rlaudit: the history could not be kept in {file}: {error.strerror}", err=True)
