#!/usr/bin/env bash
# What a container of the image runs: main.py with the flags of the container.
#
# A run that was asked to stop saves itself and ends with 0, which Kubernetes would take for the end of the
# training. Here it ends with 143, as processes do that SIGTERM ends, and is started again.
set -uo pipefail

"${PYTHON:-python}" main.py "$@" &
child=$!
stopped=''
trap 'stopped=1; kill -TERM "$child" 2>/dev/null' TERM INT
# A signal ends `wait` early; what matters is how the process ended.
while kill -0 "$child" 2>/dev/null; do wait "$child" || true; done
wait "$child"
status=$?
[[ $stopped && $status == 0 ]] && status=143
exit "$status"
