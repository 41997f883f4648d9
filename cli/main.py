"""The ``rlaudit`` command: registers the subcommands and turns errors into one message and an exit status.

Nothing heavy is imported here or at the head of any command's module: ``rlaudit --help`` has to feel instant.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

import rlaudit
from rlaudit.cli import capture, hooks, info, query, report, schema, shell, version
from rlaudit.errors import RlauditError

HELP = """Do your rollout engine and your trainer compute the same policy?

rlaudit records what both sides of a reinforcement-learning run computed (tokens, log-probabilities, routed experts, versions)
and says whether they agree, and if not, where.

\b
  rlaudit capture -- python train.py        record a training run; its code stays as it is
  rlaudit report RUN                        verdict, findings and metrics
  rlaudit query RUN "select * from steps"   SQL over everything that was captured
"""

# Typer's Rich help pages take longer to import than everything else that a help page needs.
app = typer.Typer(
    name="rlaudit",
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command("capture", cls=capture.CaptureCommand, short_help="Run a training command and record what it computes.")(capture.command)
app.command("report", short_help="Verdict, findings and metrics of a run.")(report.command)
app.command("query", cls=query.QueryCommand, short_help="SQL over one run or several.")(query.command)
app.command("shell", short_help="A SQL prompt on a run.")(shell.command)
app.command("info", short_help="What a run is, and what capture did.")(info.command)
app.command("hooks", short_help="What capture would attach to in this environment.")(hooks.command)
app.command("schema", short_help="Tables and views of a run, column by column.")(schema.command)
app.command("version", short_help="Versions of rlaudit and of the packages that it works with.")(version.command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rlaudit {rlaudit.__version__}")
        raise typer.Exit


@app.callback()
def _top(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line. Exit status: 0, what the captured command returned, 2 for a problem explained on stderr,
    130 after Ctrl-C."""
    status: int | str | None = 0
    try:
        app()
    except SystemExit as end:
        status = end.code
    except RlauditError as error:
        print(f"rlaudit: {error}", file=sys.stderr)
        status = error.exit_status
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of a pipe has gone (rlaudit query ... | head): nothing to say, and nothing left to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)


if __name__ == "__main__":
    main()
