"""What every Python process below a captured command pays, and what it must never notice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlaudit import schema
from rlaudit.capture.config import CaptureConfig

HEAVY = {
    "numpy",
    "pyarrow",
    "duckdb",
    "scipy",
    "numba",
    "torch",
    "transformers",
    "pandas",
    "typer",
    "rich",
    "packaging",
    "inspect",
    "dataclasses",
}


def child(code: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A bare interpreter (no site start-up of its own) with capture configured, running ``code`` after the bootstrap."""
    config = CaptureConfig(run=str(tmp_path / "run"), run_id="r", tables=tuple(t.name for t in schema.TABLES))
    variables = {**os.environ, "RLAUDIT_CAPTURE": config.to_variable(), **environment}
    return subprocess.run(
        [sys.executable, "-c", f"import rlaudit.capture.bootstrap\n{code}"], env=variables, capture_output=True, text=True, check=False
    )


def test_the_bootstrap_imports_nothing_heavy(tmp_path: Path) -> None:
    done = child("import sys, json; print(json.dumps(sorted(sys.modules)))", tmp_path)
    assert done.returncode == 0, done.stderr
    loaded = {name.split(".")[0] for name in json.loads(done.stdout)}
    # An editable install's own finder imports a few of these before anything of ours runs.
    bare = subprocess.run(
        [sys.executable, "-c", "import sys, json; print(json.dumps(sorted(sys.modules)))"], capture_output=True, text=True, check=True
    )
    assert loaded & HEAVY - {name.split(".")[0] for name in json.loads(bare.stdout)} == set()


def test_importing_rlaudit_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", "import rlaudit"], capture_output=True, text=True, check=True)
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert imported & {"numpy", "pyarrow", "duckdb", "scipy", "numba", "torch", "pandas", "typer", "rich"} == set()


def test_a_process_notes_that_it_exists_once(tmp_path: Path) -> None:
    done = child("import importlib, rlaudit.capture.bootstrap as b; b.start()", tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "run" / "spool").glob("*.spool"))) == 1


def test_the_kill_switch_leaves_no_trace(tmp_path: Path) -> None:
    done = child("import rlaudit; print(rlaudit.capturing())", tmp_path, RLAUDIT_DISABLE="1")
    assert done.stdout == "False\n"
    assert not (tmp_path / "run").exists()


def test_a_run_folder_that_cannot_be_written_costs_one_line_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file in the way")
    done = child("print('training')", tmp_path)
    assert (done.returncode, done.stdout) == (0, "training\n")
    assert done.stderr.count("\n") == 1
    assert "nothing is captured in process" in done.stderr


def test_a_damaged_configuration_costs_one_line_and_nothing_else(tmp_path: Path) -> None:
    done = child("print('training')", tmp_path, RLAUDIT_CAPTURE="{")
    assert (done.returncode, done.stdout) == (0, "training\n")
    assert "nothing is captured" in done.stderr


@pytest.fixture
def trigger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package on the path whose module is a trigger, and an adapter for it, as code for the child."""
    package = tmp_path / "lib" / "framework"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "loop.py").write_text("import sys\nclass Trainer:\n    def step(self, batch):\n        return batch + 1\n")
    (tmp_path / "lib" / "adapter.py").write_text(
        "import rlaudit\n"
        "from rlaudit.capture.hooks import Adapter, Target\n"
        "TARGETS = (Target('Trainer.step', ('batch',)),)\n"
        "ADAPTER = Adapter('loop', 'framework', 'no-such-distribution', '>=1', 'framework.loop', TARGETS, 'steps')\n"
        "def attach(attachment):\n"
        "    def after(token, result, call):\n"
        "        if call['batch'] == 99: raise RuntimeError('a defect of the adapter')\n"
        "        rlaudit.record_metrics(step=result, framework='loop', values={'x': float(result)})\n"
        "    attachment.observe('Trainer.step', after=after)\n"
    )
    return (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'lib')!r})\n"
        "import rlaudit.capture.registry as r; r.TRIGGERS['framework.loop'] = ('adapter',)\n"
    )


def test_an_adapter_attaches_when_its_module_is_imported_and_sees_the_calls(tmp_path: Path, trigger: str) -> None:
    done = child(trigger + "from framework.loop import Trainer; print(Trainer().step(1), Trainer().step(2))", tmp_path)
    assert (done.returncode, done.stdout) == (0, "2 3\n"), done.stderr
    events, metrics = read_back(tmp_path)
    assert ("hook_attached", "loop") in events
    assert metrics == [2.0, 3.0]


def test_the_imported_module_looks_as_without_capture(tmp_path: Path, trigger: str) -> None:
    code = trigger + (
        "import framework.loop as m, inspect\n"
        "print(type(m.__loader__).__name__, type(m.__spec__.loader).__name__)\n"
        "print(inspect.getsource(m)[:10] == 'import sys', inspect.signature(m.Trainer.step))"
    )
    assert child(code, tmp_path).stdout == "SourceFileLoader SourceFileLoader\nTrue (self, batch)\n"


def test_a_defect_in_an_adapter_is_counted_and_the_call_unharmed(tmp_path: Path, trigger: str) -> None:
    done = child(trigger + "from framework.loop import Trainer; print(Trainer().step(99))", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "100\n", "")
    from rlaudit.manifest import Manifest

    Manifest(run_id="r").write(tmp_path / "run")
    from rlaudit import Run

    beat = Run.open(tmp_path / "run").connect().execute("select detail from events where kind = 'heartbeat'").fetchall()[-1][0]
    assert json.loads(beat)["failures"] == {"loop: Trainer.step": [1, "RuntimeError: a defect of the adapter"]}


def test_a_changed_signature_is_refused_with_what_is_missing(tmp_path: Path, trigger: str) -> None:
    (tmp_path / "lib" / "framework" / "loop.py").write_text("class Trainer:\n    def step(self, items):\n        return items\n")
    done = child(trigger + "from framework.loop import Trainer; print(Trainer().step(1))", tmp_path)
    assert done.stdout == "1\n"
    events, _ = read_back(tmp_path)
    assert ("hook_refused", "loop") in events


def read_back(tmp_path: Path) -> tuple[set[tuple[str, str]], list[float]]:
    """Kinds and names of the events, and the metrics, that the child's spools hold."""
    from rlaudit import Run
    from rlaudit.manifest import Manifest

    Manifest(run_id="r").write(tmp_path / "run")
    run = Run.open(tmp_path / "run")
    events = {(row["kind"], row["name"]) for row in run.read("events").to_pylist()}
    return events, run.read("framework_metrics")["value"].to_pylist()
