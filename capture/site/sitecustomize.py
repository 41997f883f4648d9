"""Second way into a captured process, for interpreters whose environment lacks the wheel's start-up file.

The launcher puts this folder first on PYTHONPATH. Standard library only; never raises; runs the sitecustomize
that it shadows, as if it weren't there.
"""

import os
import sys


def _start_capture() -> None:
    if not os.environ.get("RLAUDIT_CAPTURE") or os.environ.get("RLAUDIT_DISABLE") == "1":
        return
    try:
        __import__("rlaudit.capture.bootstrap")
    except ImportError:
        _note_unreached()


def _note_unreached() -> None:
    """This interpreter has no rlaudit: leave a note that the coverage table can show."""
    import json
    import time

    try:
        run = json.loads(os.environ["RLAUDIT_CAPTURE"])["run"]
        folder = os.path.join(run, "spool", "unreached")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "%d-%x.json" % (os.getpid(), time.time_ns())), "w") as file:
            json.dump({"executable": sys.executable, "python": sys.version.split()[0]}, file)
    except (OSError, ValueError, KeyError):
        sys.stderr.write("rlaudit: %s has no rlaudit installed; nothing is captured in process %d\n" % (sys.executable, os.getpid()))


def _chain() -> None:
    """Run the next sitecustomize on the path: the user's own, which this one hides."""
    try:
        from _frozen_importlib_external import PathFinder  # importlib.machinery's, without what that imports
    except ImportError:
        from importlib.machinery import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    import importlib.util

    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_start_capture()
_chain()
