"""What would attach in this environment, found without importing any framework: versions from metadata, signatures from source.

The same comparison (``rlaudit.capture.hooks``) decides here, on parsed source, and in a captured process, on the live function.
"""

from __future__ import annotations

import ast
import importlib
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from rlaudit.capture.attach import installed_version, refusal
from rlaudit.capture.hooks import Adapter, Target, missing_parameters
from rlaudit.capture.registry import TRIGGERS


class Surveyed(NamedTuple):
    """One adapter in this environment.

    state: ready, refused (``reason`` says why), not installed. tested: the versions that the adapter was read against.
    """

    adapter: str
    kind: str
    distribution: str
    installed: str | None
    tested: str
    state: str
    reason: str | None
    records: str


def survey() -> list[Surveyed]:
    """Every adapter, in the order of the registry."""
    modules = dict.fromkeys(name for names in TRIGGERS.values() for name in names)
    return [_surveyed(importlib.import_module(name).ADAPTER) for name in modules]


def _surveyed(adapter: Adapter) -> Surveyed:
    version = installed_version(adapter.distribution)
    state, reason = "not installed", None
    if version is not None:
        reason = refusal(adapter, version) or mismatch(adapter)
        state = "refused" if reason else "ready"
    return Surveyed(adapter.name, adapter.kind, adapter.distribution, version, adapter.versions, state, reason, adapter.records)


def mismatch(adapter: Adapter) -> str | None:
    """How the installed source differs from what the adapter expects; None where it doesn't."""
    path = source_path(adapter)
    if path is None:
        return f"{adapter.distribution} has no module {adapter.module}"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for target in adapter.targets:
        problem = _target_mismatch(tree, target, adapter.module)
        if problem is not None and target.required:
            return problem
    return None


def source_path(adapter: Adapter) -> Path | None:
    """The source file of the adapter's module in the installed distribution; None where there is none."""
    distribution = metadata.distribution(adapter.distribution)
    stem = adapter.module.replace(".", "/")
    for candidate in (f"{stem}.py", f"{stem}/__init__.py"):
        path = Path(str(distribution.locate_file(candidate)))
        if path.is_file():
            return path
    return None


def _target_mismatch(tree: ast.Module, target: Target, module: str) -> str | None:
    *parents, name = target.path.split(".")
    body: list[ast.stmt] = tree.body
    for parent in parents:
        found = [node for node in body if isinstance(node, ast.ClassDef) and node.name == parent]
        if not found:
            return f"{module} has no {parent}"
        body = found[0].body
    functions = [node for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name]
    if not functions:
        return f"{module} has no function {target.path}"
    arguments = functions[-1].args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    takes_any = arguments.vararg is not None and arguments.kwarg is not None
    missing = missing_parameters(target, names, takes_any)
    return f"{target.path} has no parameter {', '.join(missing)}; it has ({', '.join(names)})" if missing else None
