#!/usr/bin/env bash
# What `make demo` shows: one GRPO training script, run in float32 and in bfloat16 under `rlaudit capture`, and both runs audited.
# Needs rlaudit[trl] on the PATH. Leaves the runs in runs/demo-fp32 and runs/demo; those of an earlier demo are replaced.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY="${TRANSFORMERS_VERBOSITY:-error}"
script=examples/grpo_tiny_moe.py

# Stops where the folder $1 is there and holds anything else than a run of an earlier demo.
check_room() {
    if [ -e "$1" ] && ! grep -qs "$script" "$1/manifest.json"; then
        echo "$1 is there already and isn't from an earlier demo, so it is left alone. Move it away, then run the demo again." >&2
        exit 1
    fi
}

# Prints what is about to run, then runs it.
show() {
    printf '\n$ %s\n' "$*"
    "$@"
}

# Prints the verdict of run $2 under the name $1.
verdict() {
    rlaudit report "$2" --format json | python -c '
import json, sys
verdict = json.load(sys.stdin)["verdict"]
print("  {:9} {:13} {}".format(sys.argv[1], verdict["status"], verdict["sentence"]))' "$1"
}

check_room runs/demo-fp32
check_room runs/demo
rm -rf runs/demo-fp32 runs/demo
show rlaudit capture --out runs/demo-fp32 -- python "$script" --dtype float32
show rlaudit capture --out runs/demo -- python "$script" --dtype bfloat16
show rlaudit report runs/demo-fp32
show rlaudit report runs/demo

printf '\nThe same training script, twice:\n'
verdict float32 runs/demo-fp32
verdict bfloat16 runs/demo
cat <<'END'

Try next (. .venv/bin/activate first):
  rlaudit query runs/demo "select step, count(*) as tokens, avg(abs(delta)) as mean_abs_delta, max(abs(delta)) as worst from tokens group by step order by step"
  rlaudit info runs/demo
  rlaudit capture -- python your_training_script.py
END
