"""The documentation says what the code does: generated pages are fresh, examples run, every finding has its section."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rlaudit.cli import docs as generator
from rlaudit.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
CODE = re.compile(r"Finding\(\s*\"([A-Z][A-Z0-9_]+)\"")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def codes_in_rules() -> set[str]:
    sources = (ROOT / "analyzers" / "rules").glob("*.py")
    return {code for source in sources for code in CODE.findall(source.read_text(encoding="utf-8"))}


def test_generated_pages_are_what_the_code_says() -> None:
    assert generator.stale(DOCS) == [], "run python -m rlaudit.cli.docs"


def test_every_finding_of_the_rules_has_a_section_and_no_section_is_without_a_rule() -> None:
    documented = re.findall(r"^### ([A-Z0-9_]+)$", page("findings.md"), flags=re.MULTILINE)
    assert len(codes_in_rules()) >= 20
    assert sorted(documented) == sorted(codes_in_rules())


@pytest.mark.parametrize(
    "section",
    re.split(r"^### ", (DOCS / "findings.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:],
    ids=lambda s: s.split("\n")[0],
)
def test_every_finding_says_how_it_is_known_what_it_is_not_and_what_to_do(section: str) -> None:
    for part in ("- **How it is known**: ", "- **What it is not**: ", "- **What to do**: "):
        assert section.count(part) == 1
    assert re.search(r"^\*(fail|warn|info)\b", section, flags=re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_between_pages_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert "://" in target or (DOCS / target).is_file(), f"{path.name} links to {target}"


def test_every_page_is_in_the_index() -> None:
    linked = set(re.findall(r"\]\(([^)]+)\)", page("index.md")))
    assert {path.name for path in PAGES} - {"index.md"} <= linked


def commands(path: Path) -> list[str]:
    """The rlaudit commands in the page's code blocks, fenced or indented, without prompts and comments."""
    text = path.read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    blocks += re.findall(r"(?:^    .*\n)+", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), flags=re.MULTILINE)
    found = re.findall(r"^ *(?:\$ )?(rlaudit (?:-|[a-z]+ ).+)$", "\n".join(blocks), flags=re.MULTILINE)
    return [re.sub(r"\s+# .*$", "", line) for line in found]


ALL_PAGES = [*PAGES, ROOT / "README.md"]


@pytest.mark.parametrize("path", ALL_PAGES, ids=lambda path: path.name)
def test_commands_in_the_pages_exist_with_their_options(path: Path, cli) -> None:
    for line in commands(path):
        own = line.split(" -- ")[0]
        name = own.split()[1]
        assert name in COMMANDS or name.startswith("--"), line
        options = [word.split("=")[0] for word in re.sub(r'"[^"]*"', "", own).split()[1:] if word.startswith("--")]
        known = cli(name, "--help").out if name in COMMANDS else cli("--help").out
        assert all(option in known for option in options), line


def code_blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page(name), flags=re.MULTILINE | re.DOTALL)


def test_the_loop_of_the_python_api_is_captured_and_audited_as_the_page_shows(tmp_path: Path) -> None:
    loop, *readers = code_blocks("python-api.md", "python")
    (tmp_path / "loop.py").write_text(loop)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    shell = subprocess.run(
        ["bash", "-euc", code_blocks("python-api.md", "sh")[0]], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert shell.returncode == 0, shell.stderr
    # 5 steps of 8 sequences of 16 tokens
    assert "640 of 640 sampled tokens compared, 100 %" in shell.stdout
    assert shell.stdout.startswith("OK  ")
    for reader in readers:
        done = subprocess.run([sys.executable, "-c", reader], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("OK ")


def test_the_loop_runs_without_capture_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code_blocks("python-api.md", "python")[0]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


QUERIES = [(path, line) for path in ALL_PAGES for line in commands(path) if line.startswith("rlaudit query ") and line.count('"') % 2 == 0]


@pytest.mark.parametrize(("path", "line"), QUERIES, ids=[f"{path.name}-{number}" for number, (path, _) in enumerate(QUERIES)])
def test_queries_in_the_pages_run(path: Path, line: str, cli, run: Path) -> None:
    _, _, *places, sql = [word for word in shlex.split(line) if not word.startswith("--")]
    if "..." not in sql:
        named = [f"{place.split('=')[0]}={run}" if "=" in place else str(run) for place in places]
        outcome = cli("query", *named, sql)
        assert outcome.status == 0, outcome.err
