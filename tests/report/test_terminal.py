"""The terminal report: verdict first, nothing cut, nothing said by colour alone."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import pytest
from rich.console import Console

from rlaudit.report import terminal


def printed(report: Any, width: int, *, colours: bool = False) -> str:
    file = io.StringIO()
    terminal.render(
        report, Console(file=file, width=width, force_terminal=colours, color_system="standard" if colours else None, highlight=False)
    )
    return file.getvalue()


def test_the_verdict_is_the_first_line_in_words(full_report: Any, healthy_report: Any) -> None:
    assert printed(full_report, 100).splitlines()[0] == "WARN  Routing differs between rollout and trainer"
    assert printed(healthy_report, 100).startswith("OK  Rollout and trainer agree")


def test_output_to_a_pipe_has_no_escape_sequences_and_no_trailing_blanks(full_report: Any) -> None:
    text = printed(full_report, 100)
    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if line != line.rstrip()]


def test_colour_only_repeats_what_the_words_say(full_report: Any) -> None:
    import re

    coloured = re.sub(r"\x1b\[[0-9;]*m", "", printed(full_report, 100, colours=True))
    assert " ".join(coloured.split()) == " ".join(printed(full_report, 100).split())


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_tables_fit_the_page_by_leaving_columns_out_and_say_which(full_report: Any, width: int) -> None:
    lines = printed(full_report, width).splitlines()
    start = lines.index("By training step")
    table = lines[start : lines.index("", start)]
    assert max(len(line) for line in table) <= width
    assert any("0.99968" in line for line in table)
    if width == 60:
        assert any(line.startswith("  Left out at this width: ") for line in table)


def test_numbers_are_whole_on_a_page_that_is_far_too_narrow(full_report: Any) -> None:
    text = printed(full_report, 30)
    assert "1 - 3.2e-06" in text or "0.9999968" in text
    assert "…" not in text.split("Agreement of rollout")[1].split("By training step")[0]


def test_commands_are_printed_on_one_line_however_narrow_the_page_is(full_report: Any) -> None:
    sql = full_report.findings[0].sql
    assert f'rlaudit query runs/demo "{sql}"' in printed(full_report, 40)


def test_a_long_run_prints_first_last_and_worst_steps_and_says_so(long_report: Any) -> None:
    lines = printed(long_report, 120).splitlines()
    start = lines.index("By training step")
    table = lines[start : lines.index("", start)]
    steps = [line.split()[0] for line in table[3:] if line.split()[0].isdigit()]
    # mean |Δ log p| rises with the step, so the worst 18 between the edges are 479..496
    assert steps[:24] == ["0", "1", "2", *map(str, range(479, 500))]
    assert "24 of 500 steps shown: the first and last 3, and the 18 with the largest mean |Δ log p|" in " ".join(" ".join(table).split())


def test_every_finding_shows_where_evidence_query_and_what_to_try(full_report: Any) -> None:
    text = printed(full_report, 100)
    block = text.split("WARN  ROUTING_NOISE")[1].split("INFO  PRECISION")[0]
    for expected in (
        "steps 0–11 · layer 2",
        "3.12 %",
        "1.20e-06 nats",
        "unknown: –",
        "rlaudit query runs/demo",
        "Replay the rollout's routing",
    ):
        assert expected in block


def test_the_noise_floor_stands_beside_the_numbers_as_a_ratio(full_report: Any) -> None:
    row = next(line for line in printed(full_report, 100).splitlines() if line.startswith("  |Δ log p| mean"))
    # 1.234e-2 over 1.234e-4
    assert row.split()[-4:] == ["0.0123", "1.23e-04", "100", "×"]


def test_a_run_without_a_noise_floor_says_that_there_is_none(healthy_report: Any) -> None:
    assert "No noise floor" in printed(healthy_report, 100)


def test_framework_numbers_are_counted_as_equal_different_and_not_compared(full_report: Any) -> None:
    row = next(
        line
        for line in printed(full_report, 120).splitlines()
        if "sampling_logp_difference" in line and "trl: " in line and "step 2" in line
    )
    assert row.split()[2:5] == ["1", "1", "1"]


def test_the_report_ends_with_three_commands(full_report: Any, healthy_report: Any) -> None:
    for report in (full_report, healthy_report):
        end = printed(report, 100).split("\nNext\n")[1]
        assert [line.split()[1] for line in end.splitlines() if line.startswith("    rlaudit")] == ["query", "shell", "report"]


def test_routing_that_is_the_same_everywhere_is_a_sentence_and_no_table_of_zeros(full_report: Any) -> None:
    layers = tuple(dataclasses.replace(layer, disagreement=0.0, overlap=1.0) for layer in full_report.routing_by_layer)
    steps = tuple(dataclasses.replace(step, disagreement=0.0, any_layer=0.0) for step in full_report.routing_by_step)
    text = printed(dataclasses.replace(full_report, routing_by_layer=layers, routing_by_step=steps), 100)
    # two layers of 12,250 tokens
    assert "The same sets of experts in all 24,500 (token, layer) pairs of 2 layers" in " ".join(text.split())
    assert "Routed experts by" not in text


def test_a_floor_that_is_exact_has_no_multiples(full_report: Any) -> None:
    exact = {"pearson_prob": 1.0, "logp_diff_mean": 0.0, "logp_diff_p99": 0.0, "logp_diff_max": 0.0, "k3": 0.0, "ratio_gt2": 0.0}
    text = printed(dataclasses.replace(full_report, noise_floor=dataclasses.replace(full_report.noise_floor, values=exact)), 100)
    assert "the two evaluations are the same, so there is no multiple" in " ".join(text.split())
    assert "times floor" not in text


def test_several_reasons_are_named_by_code_once_and_other_reasons_in_full(full_report: Any) -> None:
    findings = (full_report.findings[0], dataclasses.replace(full_report.findings[0], code="STALENESS", title="Old"))
    reasons = (*(f"{finding.code}: {finding.title}" for finding in findings), "Nothing was linked.")
    report = dataclasses.replace(full_report, findings=findings, verdict=dataclasses.replace(full_report.verdict, reasons=reasons))
    assert printed(report, 100).splitlines()[1:3] == ["  because of ROUTING_NOISE, STALENESS", "  - Nothing was linked."]
