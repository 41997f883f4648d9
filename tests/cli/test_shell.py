"""rlaudit shell: statements end with semicolons, dot commands help, piped input works."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from rlaudit.cli.shell import complete


def test_piped_statements_may_span_lines_and_share_them(cli, run: Path) -> None:
    outcome = cli("shell", run, stdin="select count(*)\n  as n\nfrom sequences;\nselect 1 as x; select 2 as y;\nselect 3 as z")
    assert outcome.status == 0
    assert outcome.out.split() == ["n", "3", "(1", "row)", "x", "1", "(1", "row)", "y", "2", "(1", "row)", "z", "3", "(1", "row)"]


def test_the_first_statement_that_fails_ends_a_piped_shell(cli, run: Path) -> None:
    outcome = cli("shell", run, stdin="select 1 as x;\nselect nothing;\nselect 2 as y;\n")
    assert outcome.status == 2
    assert "nothing" in outcome.err
    assert "y" not in outcome.out


def test_dot_commands_list_tables_describe_them_and_leave(cli, run: Path) -> None:
    outcome = cli("shell", run, stdin=".tables\n.schema steps\n.format csv\nselect 1 as x;\n.quit\nselect 2 as never;")
    assert "one sampled response as the trainer consumed it" in outcome.out
    assert "pearson_prob" in outcome.out
    assert outcome.out.endswith("x\n1\n")


def test_an_unknown_dot_command_says_what_there_is(cli, run: Path) -> None:
    outcome = cli("shell", run, stdin=".tabels\n")
    assert outcome.status == 2
    assert ".help lists them" in outcome.err


def test_a_shell_can_not_write_files(cli, run: Path, tmp_path: Path) -> None:
    assert cli("shell", run, stdin=f"copy (select 1) to '{tmp_path / 'x'}';").status == 2
    assert list(tmp_path.iterdir()) == []


def test_several_runs_are_schemas(cli, run: Path) -> None:
    assert "3" in cli("shell", f"a={run}", f"b={run}", stdin="select count(*) from b.sequences;").out


@pytest.mark.parametrize(
    ("typed", "ends"),
    [
        ("select 1;", True),
        ("select 1; ", True),
        ("select 1; -- done", True),
        ("select 1; /* done */", True),
        ("select 1", False),
        ("select ';", False),
        ("select ';'", False),
        ("select 'it''s;';", True),
        ('select "a;"', False),
        ("select 1 -- ;", False),
        ("select 1 /* ; */", False),
        ("select 1; select 2", False),
        ("select '--';", True),
    ],
)
def test_a_statement_ends_at_a_semicolon_outside_of_quotes_and_comments(typed: str, ends: bool) -> None:
    assert complete(typed + "\n") is ends


def test_at_a_terminal_it_prompts_survives_an_error_and_keeps_the_history(run: Path, tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"}
    shell = subprocess.Popen(
        [sys.executable, "-m", "rlaudit.cli.main", "shell", str(run)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment,
        close_fds=True,
    )
    os.close(terminal)
    os.write(controller, b"select wrong;\nselect 41 + 1 as answer;\n.quit\n")
    printed = b""
    while True:
        try:
            part = os.read(controller, 4096)
        except OSError:  # the other end is closed: Linux reports that as an error
            break
        if not part:
            break
        printed += part
    os.close(controller)
    assert shell.wait(timeout=60) == 0
    text = printed.decode()
    assert "rlaudit> " in text
    assert "wrong" in text
    assert "42" in text
    assert "select 41 + 1 as answer;" in (tmp_path / "rlaudit" / "history").read_text()
