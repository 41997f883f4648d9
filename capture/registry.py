"""Which import triggers which adapter, and what would attach in an environment.

``TRIGGERS`` is a literal that the bootstrap reads in every process; adapter modules are imported only
where their trigger is.
"""

from __future__ import annotations

TRIGGERS: dict[str, tuple[str, ...]] = {
    "trl.trainer.grpo_trainer": ("rlaudit.capture.frameworks.trl_grpo",),
    "trl.trainer.rloo_trainer": ("rlaudit.capture.frameworks.trl_rloo",),
    "transformers.generation.utils": ("rlaudit.capture.engines.transformers_generate",),
}
"""Imported module to the adapter modules that attach to it, in order."""
