"""Where the sitecustomize lies that starts capture in interpreters without the wheel's start-up file."""

from __future__ import annotations

import os

SITE_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")  # noqa: PTH118, PTH120, PTH100  (no pathlib at start-up)
