#!/usr/bin/env bash
# Makes a virtual environment in which SGLang runs on a CPU: setup_cpu_engine.sh FOLDER. Takes two minutes and 1.8 GB.
# On a GPU, install SGLang as its documentation says instead. The versions and the stand-ins for what only a GPU has are those of the tests.
set -euo pipefail
engines="$(cd "$(dirname "$0")/../../tests/engines" && pwd)"
requirements="$engines/requirements-sglang-0.5.19-cpu.txt"
environment="$1"
if cmp -s "$requirements" "$environment/ready"; then exit 0; fi
"${PYTHON:-python3}" -m venv "$environment"
# without dependencies: SGLang's own list asks for CUDA packages
"$environment/bin/python" -m pip --disable-pip-version-check install --quiet --no-compile --no-deps -r "$requirements"
packages="$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
cp -R "$engines/sglang_cpu_shim/." "$packages/"
echo "import sglang_cpu_stand_ins" > "$packages/sglang_cpu_stand_ins.pth"
cp "$requirements" "$environment/ready"
