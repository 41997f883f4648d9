"""The environment of the SGLang tests: the engine itself on a CPU, from PyPI's wheel, with stand-ins for what only a GPU has."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.integration.environments import installed, run, site_packages

HERE = Path(__file__).parent
VARIABLES = {"HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def sglang_commands() -> Path:
    """bin folder of the environment with SGLang 0.5.19 for CPUs."""
    requirements = (HERE / "requirements-sglang-0.5.19-cpu.txt").read_text().splitlines()
    kept = [line for line in requirements if line and not line.startswith("#")]
    return installed("sglang-0.5.19-cpu", ["--no-deps", *kept], finish=_with_stand_ins)


def _with_stand_ins(environment: Path) -> None:
    """Put the stand-ins where every process of the environment, also a spawned one, finds them at its start."""
    folder = site_packages(environment)
    shutil.copytree(HERE / "sglang_cpu_shim", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "sglang_cpu_stand_ins.pth").write_text("import sglang_cpu_stand_ins\n", encoding="utf-8")


def captured(commands: Path, out: Path, script: str, *arguments: str | Path, options: tuple[str, ...] = (), **variables: str) -> str:
    """Run a script of this folder under ``rlaudit capture``; its output."""
    environment = {**VARIABLES, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", **variables}
    command = [commands / "rlaudit", "capture", "--out", out, *options, "--", commands / "python", HERE / script, *arguments]
    return run(command, out.parent, **environment)
