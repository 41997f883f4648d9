"""Rounding for people never changes what a number says."""

from __future__ import annotations

import doctest
import shlex
import subprocess

import pytest

from rlaudit.report import text


def test_the_examples_in_the_documentation_hold() -> None:
    assert doctest.testmod(text).failed == 0


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (None, "nats", "–"),
        (0, None, "0"),
        (0.0, "nats", "0"),
        (True, None, "yes"),
        (float("nan"), None, "NaN"),
        (float("-inf"), "nats", "-inf"),
        (1234567, None, "1,234,567"),
        (1.2e-06, "nats", "1.20e-06"),
        (0.0123456, "nats", "0.0123"),
        (123456.7, None, "123,457"),
        (1.5e7, None, "1.50e+07"),
        ("bfloat16", None, "bfloat16"),
    ],
)
def test_numbers_have_three_significant_digits_and_missing_ones_a_dash(value: float | None, unit: str | None, shown: str) -> None:
    assert text.number(value, unit) == shown


@pytest.mark.parametrize("distance", [1e-1, 3.2e-4, 4.9e-7, 1e-9, 1e-12])
def test_a_correlation_that_is_not_one_never_reads_as_one(distance: float) -> None:
    shown = text.number(1 - distance)
    away = float(shown.removeprefix("1 - ")) if shown.startswith("1 - ") else 1 - float(shown)
    assert away == pytest.approx(distance, rel=0.05)
    assert text.number(1 + 3.2e-9) == "1 + 3.2e-09"


@pytest.mark.parametrize("share", [0.99996, 1 - 1e-9, 0.9999999999])
def test_a_share_below_all_never_reads_as_100_percent(share: float) -> None:
    shown = text.percent(share).removesuffix(" %")
    assert float(shown.removeprefix("> ")) < 100
    assert shown.startswith("> ") or float(shown) == pytest.approx(share * 100, rel=1e-6)


@pytest.mark.parametrize("share", [1e-12, 1.5e-7])
def test_a_share_above_nothing_never_reads_as_0_percent(share: float) -> None:
    assert float(text.percent(share).removesuffix(" %")) / 100 == pytest.approx(share, rel=0.01)


def test_no_share_is_given_of_nothing() -> None:
    assert text.of_total(0, 0, "trainer rows") == "0 of 0 trainer rows"
    assert text.of_total(190, 192, "rows") == "190 of 192 rows, 99 %"


def test_steps_are_indices_not_amounts_and_long_lists_are_cut_with_a_count() -> None:
    assert text.place({"steps": [1000, 1002]}) == "steps 1000, 1002"
    assert text.place({"steps": [3, 4, 5], "layers": [2]}) == "steps 3–5 · layer 2"
    assert text.place({"sequence_ids": [f"s{i}" for i in range(10)]}) == "sequence ids s0, s1, s2, s3, s4, s5, s6, s7 and 2 more"


@pytest.mark.parametrize(
    "sql",
    [
        "select * from tokens where source = 'rollout'",
        'select "end" from links',
        "select 1 -- $HOME `date` \\ !",
        "select *\nfrom tokens\nwhere step = 3",
    ],
)
def test_a_printed_command_hands_the_shell_exactly_the_run_and_the_query(sql: str) -> None:
    command = text.query_command("runs/my run", sql)
    assert shlex.split(command) == ["rlaudit", "query", "runs/my run", sql]
    seen = subprocess.run(["bash", "-c", f"rlaudit() {{ printf '%s\\0' \"$@\"; }}; {command}"], capture_output=True, text=True, check=True)
    assert seen.stdout.split("\0")[:-1] == ["query", "runs/my run", sql]
