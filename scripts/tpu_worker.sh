#!/usr/bin/env bash
# What scripts/tpu_pod.sh does on each worker of a slice; it is copied there with the tree.
#
#   tpu_worker.sh install            the pinned requirements with JAX for TPU, in .venv
#   tpu_worker.sh start FLAGS...     main.py in the background; does nothing where it runs already
#   tpu_worker.sh follow             prints the log of this start until main.py ends
#   tpu_worker.sh stop               asks main.py to save and end, and waits until it has
#   tpu_worker.sh status             one line
#   tpu_worker.sh check              fails where main.py was ended by something else than itself
#
# gcloud repeats a command whose connection broke, so each may be given twice.
set -euo pipefail

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
record=${tree}_run # beside the tree, which a later copy replaces
unfinished=75      # exit code: ended, but neither finished nor failed by itself
mkdir -p "$record"

fail() {
    echo "error: $*" >&2
    exit 2
}

# Python 3.11 or newer; the images of TPU VMs have 3.10, so uv, a package of PyPI, may have to bring it.
make_environment() {
    local name
    for name in python3.11 python3.12 python3.13 python3; do
        if "$name" -c 'import ensurepip, venv, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            "$name" -m venv "$tree/.venv"
            return
        fi
    done
    python3 -m pip install --quiet --user "uv==0.13.8"
    python3 -m uv venv --quiet --python 3.11 --seed "$tree/.venv"
}

install() {
    cd "$tree"
    [[ -x .venv/bin/pip ]] || make_environment
    # In one command: JAX for TPU, and everything else as it is pinned.
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt \
        -r requirements-buckets.txt "jax[tpu]==$(sed -n 's/^jax==//p' requirements.txt)"
    echo "installed: jax $(.venv/bin/python -c 'from importlib import metadata; print(metadata.version("jax"))') on $(hostname)"
}

# The process that keeps main.py lives. Its number may belong to another since the machine was started.
is_running() {
    [[ -f $record/pid && ! -f $record/end ]] \
        && grep -qs tpu_worker "/proc/$(cat "$record/pid")/cmdline"
}

start() {
    if is_running; then
        [[ $(cat "$record/flags") == "$*" ]] \
            || fail "a run with other flags is on this slice: $(cat "$record/flags"); stop it first"
        echo "runs already on $(hostname)"
        return
    fi
    rm -f "$record/end" "$record/stopped" "$record/pid"
    printf '%s' "$*" >"$record/flags"
    touch "$record/log"
    echo $(($(wc -l <"$record/log") + 1)) >"$record/first_line"
    nohup setsid bash "$tree/scripts/tpu_worker.sh" keep "$@" </dev/null >>"$record/log" 2>&1 &
    until [[ -s $record/pid ]]; do sleep 0.1; done
    echo "started on $(hostname)"
}

# Lives as long as main.py and writes down how it ended.
keep() {
    local child code=0
    cd "$tree"
    .venv/bin/python main.py "$@" &
    child=$!
    trap 'kill -TERM "$child" 2>/dev/null' TERM
    echo $$ >"$record/pid"
    # A signal ends `wait` early; what matters is how the process ended.
    while kill -0 "$child" 2>/dev/null; do wait "$child" || true; done
    wait "$child" || code=$?
    if ((code == 0)) && this_log | grep -q 'everything is saved; continue with: '; then
        echo interrupted >"$record/end"
    else
        echo "$code" >"$record/end"
    fi
}

this_log() {
    tail -n "+$(cat "$record/first_line")" "$record/log"
}

# How the last start ended: finished, stopped (asked for), interrupted, failed CODE, lost.
outcome() {
    local end
    end=$(cat "$record/end" 2>/dev/null || echo lost)
    case $end in
        0) echo finished ;;
        interrupted) if [[ -f $record/stopped ]]; then echo stopped; else echo interrupted; fi ;;
        lost) echo lost ;;
        137) echo lost ;; # SIGKILL
        *) echo "failed $end" ;;
    esac
}

require_start() {
    [[ -f $record/first_line ]] || fail "nothing was started on $(hostname)"
}

follow() {
    require_start
    tail -n "+$(cat "$record/first_line")" --pid="$(cat "$record/pid")" -s 0.5 -f "$record/log"
    case $(outcome) in
        finished | stopped) ;;
        failed*) exit "$(cat "$record/end")" ;;
        *) exit "$unfinished" ;;
    esac
}

stop() {
    if ! is_running; then
        echo "nothing runs on $(hostname)"
        return
    fi
    touch "$record/stopped"
    kill -TERM "$(cat "$record/pid")"
    while is_running; do sleep 0.2; done
    status
}

status() {
    if is_running; then
        echo "$(hostname): running since $(date -r "$record/pid" '+%F %T')"
    elif [[ -f $record/first_line ]]; then
        echo "$(hostname): $(outcome): $(this_log | tail -n 1)"
    else
        echo "$(hostname): nothing was started"
    fi
}

check() {
    if is_running; then return; fi
    require_start
    case $(outcome) in
        interrupted | lost) exit "$unfinished" ;;
    esac
}

command=${1:-}
case $command in
    install | start | keep | follow | stop | status | check) shift && "$command" "$@" ;;
    *) fail "tpu_worker.sh knows install, start, follow, stop, status, check; not '$command'" ;;
esac
