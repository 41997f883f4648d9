"""Holds for every test, whoever starts pytest: one torch thread, no model hub, and signals as a terminal leaves them."""

import os
import signal

# Before any test imports torch: more threads make tiny models slower, up to fifty times where cores are shared.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A job in the background of a shell, or under nohup, starts with these ignored, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
