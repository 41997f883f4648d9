"""The ``rlaudit`` command: finds the subcommand and turns errors into one message and an exit status.

Nothing heavy is imported here or at the head of any command's module, and a command's module only when it is asked for:
``rlaudit --help`` has to feel instant.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

import rlaudit
from rlaudit.errors import RlauditError

COMMANDS = {
    "capture": "Run a training command and record what it computes.",
    "report": "Verdict, findings and metrics of a run.",
    "query": "SQL over one run or several.",
    "shell": "A SQL prompt on a run.",
    "info": "What a run is, and what capture did.",
    "hooks": "What capture would attach to in this environment.",
    "compact": "Fewer, larger files for a run of many processes.",
    "merge": "One run from those of several nodes.",
    "import": "A run from what an engine logged by itself.",
    "export": "A redacted copy of a run that may be given away.",
    "schema": "Tables and views of a run, column by column.",
    "version": "Versions of rlaudit and of the packages that it works with.",
}
"""Each is a module of this package with a function ``command`` and, where parsing needs it, a class ``PARSER``."""

HELP = """Do your rollout engine and your trainer compute the same policy?

rlaudit records what both sides of a reinforcement-learning run computed (tokens, log-probabilities, routed experts, versions)
and says whether they agree, and if not, where.

\b
  rlaudit capture -- python train.py        record a training run; its code stays as it is
  rlaudit report RUN                        verdict, findings and metrics
  rlaudit query RUN "select * from steps"   SQL over everything that was captured
"""

# Typer's Rich help pages take longer to import than everything else that a help page needs.
SETTINGS: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 110},
}


class Commands(TyperGroup):
    """The subcommands, each imported when it is asked for."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Typer's suggestions for a mistyped name look at the keys.
        self.commands: Any = dict.fromkeys(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The parser of one subcommand; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"rlaudit.cli.{cmd_name}")
        holder = typer.Typer(add_completion=False, **SETTINGS)
        holder.command(cmd_name, cls=getattr(module, "PARSER", None), context_settings=SETTINGS["context_settings"])(module.command)
        return typer.main.get_command(holder)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of subcommands on the help page."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(name="rlaudit", help=HELP, cls=Commands, no_args_is_help=True, **SETTINGS)


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
    """Run the command line and exit.

    Status: 0, or what the captured command returned; 2 for a problem explained on standard error; 130 after Ctrl-C.
    """
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
