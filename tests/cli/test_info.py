"""rlaudit info: what a run is, for people and for scripts."""

from __future__ import annotations

import json
from pathlib import Path


def test_it_names_command_times_tables_hooks_processes_and_versions(cli, run: Path) -> None:
    out = " ".join(cli("info", run).out.split())
    for expected in (
        "command python train.py",
        "after 3 min 12 s, exit status 0",
        "sequences 3",
        "0–2 (2 of 3)",
        "trl attached trl 1.16.0 1 2 0",
        "host-1-0 7 0.50 s train.py",
        "torch 2.13.0",
        "Without rows: routing, requests, links, weights, framework_metrics.",
    ):
        assert expected in out


def test_json_carries_the_same_facts(cli, run: Path) -> None:
    facts = json.loads(cli("info", run, "--format", "json").out)
    assert facts["manifest"]["command"] == ["python", "train.py"]
    tables = {table["name"]: table for table in facts["tables"]}
    assert (tables["sequences"]["rows"], tables["sequences"]["first_step"], tables["sequences"]["last_step"]) == (3, 0, 2)
    assert tables["routing"]["rows"] == 0
    assert tables["routing"]["first_step"] is None
    assert facts["capture"]["hooks"][0]["adapter"] == "trl"


def test_a_foreign_file_in_the_run_is_named_and_left_alone(cli, run: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "sequences" / "notes.parquet").write_text("not parquet")
    out = cli("info", copy).out
    assert "notes.parquet: not a segment, left alone" in " ".join(out.split())
    assert (copy / "sequences" / "notes.parquet").exists()
