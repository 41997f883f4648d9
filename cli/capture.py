"""``rlaudit capture``: run a training command and record what it computes."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from rlaudit.errors import BadOption, RlauditError

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?", re.IGNORECASE)
PREFIXES = " KMGT"


class Tokens(str, Enum):
    """How token ids are kept."""

    plain = "plain"
    hashed = "hashed"


class CaptureCommand(TyperCommand):
    """Everything from the first word that is no option on belongs to the command, its own options included."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line's end."""
        return ["[OPTIONS]", "--", "COMMAND..."]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse options up to the command; BadOption where it has no ``--`` before it and an option that could be ours."""
        ctx.allow_interspersed_args = False
        given = list(args)
        rest = super().parse_args(ctx, args)
        command = ctx.params.get("arguments") or []
        if command and "--" not in given[: len(given) - len(command)]:
            ours = {name for parameter in self.params for name in parameter.opts if name.startswith("--")}
            for word in command[1:]:
                if word == "--":
                    break
                if word.split("=", 1)[0] in ours:
                    raise BadOption(
                        f"{word} comes after the command {command[0]!r}: does it belong to rlaudit or to the command? "
                        f"Write rlaudit's options first, then --, then the command: rlaudit capture [OPTIONS] -- {command[0]} ..."
                    )
        return rest


PARSER = CaptureCommand

Command = Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The training command, with its own options.", show_default=False)]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="RUN", help="Folder of the run; a new one below runs/ by default.", show_default=False),
]
Include = Annotated[
    list[str] | None, typer.Option("--include", metavar="TABLE", help="Record this table only; repeatable.", show_default=False)
]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="TABLE", help="Do not record this table; repeatable.", show_default=False)
]
Sample = Annotated[
    float, typer.Option("--sample", metavar="SHARE", help="Share of prompts to record: whole prompt groups, the same in all processes.")
]
RoutingSample = Annotated[float, typer.Option("--routing-sample", metavar="SHARE", help="Share of prompts whose routed experts to record.")]
MaxBytes = Annotated[
    str | None,
    typer.Option("--max-bytes", metavar="SIZE", help="Stop recording when the run takes this much disk (500M, 2G).", show_default=False),
]
TokenIds = Annotated[Tokens, typer.Option("--tokens", help="Keep token ids, or keyed hashes of them.")]
Lossless = Annotated[
    bool, typer.Option("--lossless", help="Let training wait where the writer falls behind, instead of dropping and counting.")
]
QueueMB = Annotated[int, typer.Option("--queue-mb", metavar="MB", min=1, help="Memory that may wait for the writer, in each process.")]
RoutingWeights = Annotated[bool, typer.Option("--routing-weights", help="Record gate weights beside the expert ids.")]
RecordRouting = Annotated[
    bool, typer.Option("--record-routing", help="Ask engines for routed experts where the command doesn't. Changes their settings.")
]
RecordLogprobs = Annotated[
    bool, typer.Option("--record-logprobs", help="Ask engines for log-probabilities where the command doesn't. Changes their requests.")
]
ChecksumWeights = Annotated[
    bool, typer.Option("--checksum-weights", help="Checksum parameters at every weight synchronisation. Takes time.")
]
Probe = Annotated[
    bool, typer.Option("--probe", help="Let engines score a fixed sequence after each weight synchronisation. Adds requests.")
]
FlushSeconds = Annotated[
    float, typer.Option("--flush-seconds", metavar="SECONDS", help="Turn what was recorded into Parquet at least this often.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on in the run that --out names, as its next attempt.")]


def command(
    *,
    arguments: Command,
    out: Out = None,
    include: Include = None,
    exclude: Exclude = None,
    sample: Sample = 1.0,
    routing_sample: RoutingSample = 1.0,
    max_bytes: MaxBytes = None,
    tokens: TokenIds = Tokens.plain,
    lossless: Lossless = False,
    queue_mb: QueueMB = 1024,
    routing_weights: RoutingWeights = False,
    record_routing: RecordRouting = False,
    record_logprobs: RecordLogprobs = False,
    checksum_weights: ChecksumWeights = False,
    probe: Probe = False,
    flush_seconds: FlushSeconds = 300.0,
    resume: Resume = False,
) -> None:
    """Run a training command and record tokens, log-probabilities, routed experts and versions, without changing it.

    The command's output, signals and exit status stay its own. RLAUDIT_DISABLE=1 in its environment switches recording off.

    \b
    Examples:
      rlaudit capture -- python train.py --lr 1e-6
      rlaudit capture --out runs/first --routing-sample 0.1 --max-bytes 20G -- bash run_grpo.sh
    """
    from rlaudit.capture.launcher import exit_like, launch
    from rlaudit.capture.options import CaptureOptions

    options = CaptureOptions(
        out=out,
        include=tuple(include) if include else None,
        exclude=tuple(exclude or ()),
        sample=sample,
        routing_sample=routing_sample,
        max_bytes=parse_size(max_bytes) if max_bytes is not None else None,
        tokens=tokens.value,
        lossless=lossless,
        queue_bytes=queue_mb << 20,
        routing_weights=routing_weights,
        record_routing=record_routing,
        record_logprobs=record_logprobs,
        checksum_weights=checksum_weights,
        probe=probe,
        flush_seconds=flush_seconds,
        resume=resume,
    )
    captured = launch(options, arguments)
    with suppress(KeyboardInterrupt):  # a second Ctrl-C ends the table, not the command's exit status
        _print_coverage(captured.run)
    exit_like(captured.returncode)


def _print_coverage(folder: Path) -> None:
    """The coverage table, on standard error as all that capture says: standard output is the command's own."""
    from rich.console import Console

    from rlaudit.analyzers.capture_summary import summarise_capture
    from rlaudit.report.captured import render_captured
    from rlaudit.report.page import page_width
    from rlaudit.run import Run

    shown = os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)
    try:
        summary = summarise_capture(Run.open(folder))
    except (RlauditError, OSError) as error:
        # The command's exit status is still owed to the caller, whatever became of the run's folder.
        print(f"rlaudit: the run in {shown} can't be summed up: {error}", file=sys.stderr)
        return
    render_captured(summary, Console(stderr=True, width=page_width(sys.stderr), highlight=False), shown)


def parse_size(text: str) -> int:
    """Bytes of ``"500M"`` (powers of 1000) or ``"2GiB"`` (of 1024). BadOption for anything else.

    >>> parse_size("500M"), parse_size("1.5k"), parse_size("2GiB"), parse_size("1000")
    (500000000, 1500, 2147483648, 1000)
    """
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise BadOption(f"{text!r} is no size; write for example 500M or 2G")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** PREFIXES.index(prefix.upper() or " "))
