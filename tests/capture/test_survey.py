"""``rlaudit hooks`` agrees with what attaching finds, without importing the framework."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rlaudit.capture import survey as module
from rlaudit.capture.hooks import Adapter, Attachment, HookLog, Mismatch, Target

SOURCE = "class Trainer:\n    def step(self, batch, *, scale=1):\n        return batch\n\ndef free(*args, **kwargs):\n    return None\n"


@pytest.fixture
def framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An installed distribution ``madeup`` 1.2 with a module ``madeup_loop``."""
    (tmp_path / "madeup_loop.py").write_text(SOURCE)
    info = tmp_path / "madeup-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: madeup\nVersion: 1.2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "madeup_loop", raising=False)
    return "madeup_loop"


def adapter(module_name: str, *targets: Target, versions: str = ">=1") -> Adapter:
    return Adapter("madeup loop", "framework", "madeup", versions, module_name, targets, "steps")


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        (Target("Trainer.step", ("batch", "scale")), None),
        (Target("free", ("anything",)), None),
        (Target("Trainer.step", ("items",)), "Trainer.step has no parameter items; it has (self, batch, scale)"),
        (Target("Trainer.stop"), "madeup_loop has no function Trainer.stop"),
        (Target("Runner.step"), "madeup_loop has no Runner"),
        (Target("Runner.step", required=False), None),
    ],
)
def test_source_and_live_function_give_the_same_answer(framework: str, target: Target, problem: str | None) -> None:
    one = adapter(framework, target)
    assert module.mismatch(one) == problem
    assert framework not in sys.modules, "the survey imports nothing"
    live = __import__(framework)
    if problem is None:
        Attachment(one, live, HookLog())
    else:
        with pytest.raises(Mismatch) as caught:
            Attachment(one, live, HookLog())
        assert str(caught.value) == problem


def test_a_version_outside_the_range_is_refused_with_both(framework: str) -> None:
    got = module._surveyed(adapter(framework, Target("Trainer.step"), versions=">=2"))
    assert (got.state, got.reason) == ("refused", "madeup 1.2 is not supported; rlaudit knows >=2")


def test_what_is_not_installed_is_said_so() -> None:
    got = module._surveyed(Adapter("x", "engine", "no-such-distribution", ">=1", "x", (), ""))
    assert (got.state, got.installed) == ("not installed", None)


def test_every_registered_adapter_is_surveyed() -> None:
    names = {row.adapter for row in module.survey()}
    assert {"TRL GRPO", "TRL RLOO", "Hugging Face generate"} <= names
