"""Adapters say what they attach to, also where the frameworks are not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlaudit.capture.registry import TRIGGERS

ADAPTERS = [(trigger, name) for trigger, names in TRIGGERS.items() for name in names]


@pytest.mark.parametrize(("trigger", "name"), ADAPTERS, ids=lambda value: value.rsplit(".", 1)[-1])
def test_an_adapter_is_readable_without_torch_and_declares_its_trigger(trigger: str, name: str) -> None:
    code = (
        "import sys, importlib\n"
        "for heavy in ('torch', 'transformers', 'trl', 'vllm'): sys.modules[heavy] = None\n"
        f"adapter = importlib.import_module({name!r}).ADAPTER\n"
        "print(adapter.module, len(adapter.targets))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    module, targets = done.stdout.split()
    assert module == trigger
    assert int(targets) > 0
