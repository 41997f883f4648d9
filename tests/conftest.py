"""Holds for every test, whoever starts pytest: one torch thread, and no model hub."""

import os

# Before any test imports torch: more threads make tiny models slower, up to fifty times where cores are shared.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
