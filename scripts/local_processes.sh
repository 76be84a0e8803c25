#!/usr/bin/env bash
# One run shared by several processes of this machine, to try what several hosts will do:
#
#   PROCESSES=2 scripts/local_processes.sh --config=configs/digits.py --workdir=runs/two
#
# Ctrl-C, or SIGTERM to this script, makes all of them save and end.
set -euo pipefail

count=${PROCESSES:-2}
port=${PORT:-12345}
pids=()
# Ctrl-C reaches the processes without this script's help, and a second signal means "at once".
trap 'kill -TERM "${pids[@]}" 2>/dev/null' TERM
trap ':' INT

for ((index = 0; index < count; index++)); do
    "${PYTHON:-.venv/bin/python}" main.py "$@" --coordinator="127.0.0.1:$port" \
        --num_processes="$count" --process_id="$index" &
    pids+=("$!")
done

status=0
for pid in "${pids[@]}"; do
    # A signal ends `wait` early; what matters is how the process ended.
    while kill -0 "$pid" 2>/dev/null; do wait "$pid" || true; done
    wait "$pid" || status=$?
done
exit "$status"
