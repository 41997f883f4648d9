"""The examples stand for a user's own code: they must not know that they are audited."""

import ast
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.name)
def test_an_example_imports_nothing_of_rlaudit(script: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.split(".")[0])
    assert "rlaudit" not in imported


def test_there_are_examples_to_look_at() -> None:
    assert {"grpo_tiny_moe.py", "grpo_smollm2.py", "upcycle_moe.py"} <= {path.name for path in EXAMPLES}
