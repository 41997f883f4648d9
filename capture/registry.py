"""Which import triggers which adapter, and what would attach in an environment.

``TRIGGERS`` is a literal that the bootstrap reads in every process; adapter modules are imported only
where their trigger is.
"""

from __future__ import annotations

TRIGGERS: dict[str, tuple[str, ...]] = {
    "trl.trainer.grpo_trainer": ("rlaudit.capture.frameworks.trl_grpo",),
    "trl.trainer.rloo_trainer": ("rlaudit.capture.frameworks.trl_rloo",),
    "trl.generation.vllm_generation": ("rlaudit.capture.frameworks.trl_vllm",),
    "transformers.generation.utils": ("rlaudit.capture.engines.transformers_generate",),
    "vllm.engine.arg_utils": ("rlaudit.capture.engines.vllm_opt_ins",),
    "vllm.v1.engine.input_processor": ("rlaudit.capture.engines.vllm_inputs",),
    "vllm.v1.engine.output_processor": ("rlaudit.capture.engines.vllm_output",),
    "vllm.v1.engine.llm_engine": ("rlaudit.capture.engines.vllm_llm_engine",),
    "vllm.v1.engine.async_llm": ("rlaudit.capture.engines.vllm_async_engine",),
    "vllm.model_executor.models.utils": ("rlaudit.capture.engines.vllm_weights",),
    "vllm.v1.worker.gpu_model_runner": ("rlaudit.capture.engines.vllm_runner",),
    "vllm.v1.worker.gpu.model_runner": ("rlaudit.capture.engines.vllm_runner_v2",),
    "vllm.v1.worker.gpu_worker": ("rlaudit.capture.engines.vllm_worker",),
    "sglang.srt.server_args": ("rlaudit.capture.engines.sglang_settings",),
    "sglang.srt.managers.tokenizer_manager": ("rlaudit.capture.engines.sglang_tokenizer_manager",),
}
"""Imported module to the adapter modules that attach to it, in order."""

PROPAGATION: dict[str, tuple[str, str]] = {
    "ray._private.worker": ("rlaudit.capture.propagation.ray", "propagate_init"),
    "ray.dashboard.modules.job.sdk": ("rlaudit.capture.propagation.ray", "propagate_submission"),
}
"""Imported module to the function that lets it carry capture on to processes that inherit nothing. No recorder is made for these:
Ray's helper processes import them too."""
