"""Writes the generated pages of ``docs/``.

python -m rlaudit.cli.docs [FOLDER]            write them (FOLDER: docs)
python -m rlaudit.cli.docs --check [FOLDER]    exit with 1 where one is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from rlaudit.cli import metrics_page, run_format

PAGES: dict[str, Callable[[], str]] = {"run-format.md": run_format.markdown, "metrics.md": metrics_page.markdown}


def stale(folder: Path) -> list[str]:
    """Names of the generated pages in ``folder`` that are missing or differ from what the code says."""
    return [name for name, page in PAGES.items() if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != page()]


def main() -> int:
    """Write or check the pages; the exit status."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    folder = Path(arguments[0] if arguments else "docs")
    if "--check" in sys.argv[1:]:
        old = stale(folder)
        if old:
            print(f"out of date: {', '.join(old)}; run python -m rlaudit.cli.docs {folder}", file=sys.stderr)
        return 1 if old else 0
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
