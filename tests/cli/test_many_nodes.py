"""compact, merge and export: the commands say what they did and refuse what they must."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlaudit import Run
from rlaudit.cli.main import app
from rlaudit.errors import RlauditError
from rlaudit.spool import Constant, Scalars, SpoolFile, encode_frame
from tests.synthetic import write_run


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, RlauditError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def spool(folder: Path, host: str) -> None:
    file = SpoolFile(folder / "spool", f"{host}-9-0", 1, {"host": host, "rank": None, "process": f"{host}-9-0", "attempt": 0})
    file.append(encode_frame("sequences", 1, {"step": Constant(0), "sequence_id": Scalars([f"of-{host}"])}))


def test_compact_leaves_what_another_host_may_still_write_until_told_that_it_is_over(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_run(folder, sequences=[{"step": 0, "sequence_id": "a"}])
    spool(folder, "elsewhere")
    assert "1 files are still open" in run("compact", folder)
    assert "sequences: 2 files became 1" in run("compact", folder, "--all-hosts")
    assert list((folder / "spool").iterdir()) == []
    assert sorted(Run.open(folder).read("sequences")["sequence_id"].to_pylist()) == ["a", "of-elsewhere"]
    assert run("compact", folder) == "nothing to compact\n"


def test_merge_and_export_name_the_next_step(tmp_path: Path) -> None:
    for node in ("a", "b"):
        write_run(
            tmp_path / node,
            process=f"{node}-1-0",
            manifest={"job": "slurm:1", "hosts": [node]},
            sequences=[{"step": 0, "sequence_id": node}],
        )
    assert "hosts a, b" in run("merge", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "all")
    assert "redacted copy" in run("export", tmp_path / "all", "--redact", "--out", tmp_path / "copy")
    assert Run.open(tmp_path / "copy").read("sequences").num_rows == 2


def test_export_without_redaction_says_how_to_copy(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    with pytest.raises(RlauditError, match="cp -r"):
        run("export", tmp_path / "run", "--out", tmp_path / "copy")
