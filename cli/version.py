"""``rlaudit version``: what is installed here, for bug reports."""

from __future__ import annotations

import typer

import rlaudit

PACKAGES = (
    "duckdb",
    "numba",
    "numpy",
    "pyarrow",
    "scipy",
    "typer",
    "torch",
    "transformers",
    "trl",
    "vllm",
    "sglang",
    "ray",
    "verl",
)


def command() -> None:
    """Print the versions of rlaudit and of the packages that it works with.

    \b
    Example:
      rlaudit version
    """
    import platform
    from importlib import metadata

    typer.echo(f"rlaudit {rlaudit.__version__}")
    typer.echo(f"python {platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in PACKAGES:
        try:
            typer.echo(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
