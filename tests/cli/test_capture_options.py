"""rlaudit capture's own options: whose option is whose, sizes, refusals before anything starts."""

from __future__ import annotations

import doctest
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlaudit.cli import capture
from rlaudit.errors import BadOption


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, list[str]]]:
    """Calls of the launcher, which starts nothing here and says that the command ended with 7."""
    calls: list[tuple[object, list[str]]] = []

    def launch(options: object, command: list[str]) -> SimpleNamespace:
        calls.append((options, list(command)))
        return SimpleNamespace(returncode=7, run=Path("/nowhere"))

    monkeypatch.setattr("rlaudit.capture.launcher.launch", launch)
    return calls


def test_everything_after_the_dashes_is_the_command_untouched(cli, launched) -> None:
    outcome = cli("capture", "--out", "r", "--", "python", "train.py", "--out", "x", "--sample=2", "--", "-h")
    assert outcome.status == 7
    assert launched[0][1] == ["python", "train.py", "--out", "x", "--sample=2", "--", "-h"]
    assert launched[0][0].out == Path("r")


def test_without_dashes_the_first_word_starts_the_command_and_its_options_stay_its_own(cli, launched) -> None:
    cli("capture", "--sample", "0.5", "python", "train.py", "--lr", "1e-6", "-o", "x")
    assert launched[0][1] == ["python", "train.py", "--lr", "1e-6", "-o", "x"]
    assert launched[0][0].sample == 0.5


@pytest.mark.parametrize("option", ["--out", "--sample=0.1", "--lossless"])
def test_without_dashes_an_option_that_could_be_either_sides_is_refused(cli, launched, option: str) -> None:
    outcome = cli("capture", "python", "train.py", option)
    assert outcome.status == 2
    assert "rlaudit capture [OPTIONS] -- python" in outcome.err
    assert launched == []


def test_all_options_reach_the_launcher(cli, launched) -> None:
    cli(
        "capture",
        "--include",
        "sequences",
        "--include",
        "scores",
        "--exclude",
        "links",
        "--routing-sample",
        "0.1",
        "--max-bytes",
        "2G",
        "--tokens",
        "hashed",
        "--lossless",
        "--queue-mb",
        "64",
        "--routing-weights",
        "--flush-seconds",
        "10",
        "--resume",
        "--",
        "true",
    )
    options = launched[0][0]
    assert (options.include, options.exclude, options.routing_sample) == (("sequences", "scores"), ("links",), 0.1)
    assert (options.max_bytes, options.tokens, options.lossless) == (2_000_000_000, "hashed", True)
    assert (options.queue_bytes, options.routing_weights) == (64 << 20, True)
    assert (options.flush_seconds, options.resume) == (10.0, True)


@pytest.mark.parametrize("text", ["", "2X", "-5M", "five"])
def test_a_size_that_is_none_is_refused_before_anything_starts(cli, launched, text: str) -> None:
    outcome = cli("capture", f"--max-bytes={text}", "--", "true")
    assert outcome.status == 2
    assert "is no size" in outcome.err
    assert launched == []


def test_sizes_are_read_as_documented() -> None:
    assert doctest.testmod(capture).failed == 0
    with pytest.raises(BadOption):
        capture.parse_size("1 0 G")


def test_a_command_is_required(cli, launched) -> None:
    outcome = cli("capture", "--out", "r")
    assert outcome.status == 2
    assert launched == []
