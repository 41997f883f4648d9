"""Ray: capture travels in the runtime environment, beside what the user put there.

A Ray cluster that was started earlier knows nothing of the launcher's environment variables, and an actor's own
``env_vars`` replace ``PYTHONPATH``. Job-level ``env_vars`` do reach every worker, so ``ray.init`` and
``JobSubmissionClient.submit_job`` get one variable more. Read against Ray 2.60 (``ray._private.worker.init``,
``ray.dashboard.modules.job.sdk``) and 2.49. ``RAY_RUNTIME_ENV_HOOK`` is left to the user: Ray imports it in drivers
of any environment, and one without rlaudit would then fail to start.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from rlaudit.capture.site_folder import SITE_FOLDER
from rlaudit.capture.variables import DISABLE_VARIABLE, VARIABLE

INJECTED_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Set by Ray in a submitted job's driver: the runtime environment of the submission (``ray_constants``)."""


def with_capture(runtime_env: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of a runtime environment whose processes are captured too.

    What the user set stays, their own value of our variable included. A ``PYTHONPATH`` of theirs keeps its entries,
    behind the folder that starts capture.
    """
    merged = dict(runtime_env or {})
    variables = dict(merged.get("env_vars") or {})
    for name in (VARIABLE, DISABLE_VARIABLE):
        if name in os.environ:
            variables.setdefault(name, os.environ[name])
    path = variables.get("PYTHONPATH")
    if path is not None and SITE_FOLDER not in path.split(os.pathsep):
        variables["PYTHONPATH"] = f"{SITE_FOLDER}{os.pathsep}{path}" if path else SITE_FOLDER
    merged["env_vars"] = variables
    return merged


def propagate_init(module: ModuleType, complain: Callable[[BaseException], None]) -> None:
    """Let ``ray.init`` carry capture. ``module``: ``ray._private.worker``, before ``ray`` binds its ``init``."""
    original = module.init

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        try:
            _add_to_init(kwargs)
        except Exception as error:
            complain(error)
        return original(*args, **kwargs)

    module.init = init  # type: ignore[attr-defined]


def _add_to_init(kwargs: dict[str, Any]) -> None:
    injected = json.loads(os.environ.get(INJECTED_JOB_CONFIG) or "{}").get("runtime_env") or {}
    if VARIABLE in (injected.get("env_vars") or {}):
        return  # the submission brought it; naming it twice would be a conflict to Ray
    config = kwargs.get("job_config")
    if config is not None and getattr(config, "runtime_env", None) and not kwargs.get("runtime_env"):
        config.set_runtime_env(with_capture(config.runtime_env))
        return
    kwargs["runtime_env"] = with_capture(kwargs.get("runtime_env"))


def propagate_submission(module: ModuleType, complain: Callable[[BaseException], None]) -> None:
    """Let submitted jobs carry capture. ``module``: ``ray.dashboard.modules.job.sdk``, which ``ray job submit`` uses too."""
    client = module.JobSubmissionClient
    original = client.submit_job

    @functools.wraps(original)
    def submit_job(self: Any, **kwargs: Any) -> Any:
        try:
            kwargs["runtime_env"] = with_capture(kwargs.get("runtime_env"))
        except Exception as error:
            complain(error)
        return original(self, **kwargs)

    client.submit_job = submit_job
