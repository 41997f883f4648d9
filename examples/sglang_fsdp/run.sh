#!/usr/bin/env bash
# The whole example: run.sh [RUN] [options of options.py]. Needs rlaudit, torch and transformers on the PATH's python.
# ENGINE_PYTHON: the Python of an environment that has SGLang already; otherwise one for CPUs is made under .venvs.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
run="$root/runs/sglang_fsdp"
case "${1:-}" in "" | -*) ;; *) run="$1" && shift ;; esac
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY="${TRANSFORMERS_VERBOSITY:-error}"
if [ -z "${ENGINE_PYTHON:-}" ]; then
    bash "$here/setup_cpu_engine.sh" "$root/.venvs/example-sglang"
    ENGINE_PYTHON="$root/.venvs/example-sglang/bin/python"
fi
rlaudit capture --out "$run" -- python "$here/driver.py" --engine-python "$ENGINE_PYTHON" --work "$run-work" "$@"
rlaudit report "$run"
