#!/usr/bin/env bash
# One run on all workers of a Cloud TPU slice, from a laptop with gcloud: tpu_pod.sh --help.
# Understands what a Mac has: bash 3.2, BSD's tar and mktemp.
set -euo pipefail

usage() {
    cat <<'END'
Trains on a Cloud TPU slice from a machine with gcloud.

  TPU=NAME ZONE=ZONE TYPE=v5litepod-16 scripts/tpu_pod.sh [--dry-run] COMMAND [FLAGS of main.py]

Commands:
  run FLAGS    all of it: create, install, start, follow. After a preemption it makes the slice anew and
               goes on from the last checkpoint. The same command does so again after Ctrl-C, which
               ends the following, not the run.
  create       makes the slice, or waits until the existing one is ready
  install      copies this tree, as it is now, and installs the pinned versions with JAX for TPU
  start FLAGS  starts main.py on every worker, in the background
  follow       prints the log of worker 0 until the run ends, and ends with the run's exit code
  status       the state of the slice, and of main.py on every worker
  stop         lets the run save itself and end; `run` or `start` with the same flags goes on
  delete       deletes the slice, which costs money as long as it exists

Environment:
  TPU      name of the slice
  ZONE     its zone, such as us-west4-a
  TYPE     accelerator type of a new slice, such as v5litepod-16, v5p-16, v6e-16, v4-16
  VERSION  runtime version of a new slice (default: what fits TYPE)
  PROJECT  Google Cloud project (default: gcloud's)
  SPOT     1: a new slice is a spot one, cheaper, to be preempted at any time
  CREATE   more flags for `gcloud compute tpus tpu-vm create`, such as --network=NAME
  RETRY    seconds between two looks at a slice that is not ready (default: 30)

--dry-run prints the gcloud commands instead of running them.
Exit codes: 0 finished or stopped, 1 failed, 2 something in the input is wrong.
END
}

fail() {
    echo "error: $*" >&2
    exit 2
}

say() {
    echo "tpu_pod: $*" >&2
}

# Every command for a slice goes through here: gcloud's verb, and its arguments.
slice() {
    set -- gcloud compute tpus tpu-vm "$@" "--zone=$ZONE" ${PROJECT:+"--project=$PROJECT"}
    if [[ $dry_run ]]; then
        printf '%q ' "$@"
        echo
    else
        "$@"
    fi
}

# Runs tpu_worker.sh on workers: which ones, what, and the flags of main.py.
on_workers() {
    local which=$1 words
    shift
    printf -v words '%q ' "$@" # they arrive on the workers as they were given here
    slice ssh "$TPU" "--worker=$which" --command="bash cone_jax/scripts/tpu_worker.sh $words"
}

# READY, PREEMPTED, ...; ABSENT where there is no such slice.
state() {
    local answer
    if [[ $dry_run ]]; then
        slice describe "$TPU" '--format=value(state)' >&2
        echo ABSENT
    elif answer=$(slice describe "$TPU" '--format=value(state)' 2>&1); then
        echo "${answer##*$'\n'}" # gcloud may have remarks before it
    elif [[ $answer == *NOT_FOUND* ]]; then
        echo ABSENT
    else
        echo "$answer" >&2
        return 1
    fi
}

default_version() {
    case $TYPE in
        v5litepod-*) echo v2-alpha-tpuv5-lite ;;
        v5p-*) echo v2-alpha-tpuv5 ;;
        v6e-*) echo v2-alpha-tpuv6e ;;
        v2-* | v3-* | v4-*) echo tpu-ubuntu2204-base ;;
        *) fail "TYPE ($TYPE) has no runtime version that this script knows; set VERSION" ;;
    esac
}

make_slice() {
    local version options
    [[ ${TYPE:-} ]] || fail "there is no slice $TPU in $ZONE; to make it set TYPE, such as v5litepod-16"
    version=${VERSION:-$(default_version)}
    [[ $version ]] || exit 2
    read -r -a options <<<"${CREATE:-}"
    if [[ ${SPOT:-} ]]; then options+=(--spot); fi
    say "creating $TPU ($TYPE, $version) in $ZONE"
    slice create "$TPU" "--accelerator-type=$TYPE" "--version=$version" ${options[@]+"${options[@]}"}
}

delete() {
    slice delete "$TPU" --quiet
}

# Makes the slice ready; `patient` tries again where the zone has none to give.
create() {
    local now
    while true; do
        now=$(state)
        case $now in
            READY) return ;;
            ABSENT) if make_slice; then
                if [[ $dry_run ]]; then return; fi
            else
                [[ ${1:-} == patient ]] || exit 1
                say "no slice available; trying again in $retry s"
                sleep "$retry"
            fi ;;
            PREEMPTED | TERMINATED)
                say "$TPU is $now: creating it again"
                delete
                ;;
            STOPPED) fail "$TPU is STOPPED: start it with gcloud, or delete it" ;;
            *)
                say "$TPU is $now; waiting"
                sleep "$retry"
                ;;
        esac
    done
}

install() {
    local archive
    archive=$(mktemp)
    # shellcheck disable=SC2064  # the name as it is now
    trap "rm -f '$archive'" EXIT
    # This tree as it is, changes included, but for what git ignores.
    (cd "$root" && git ls-files -z --cached --others --exclude-standard \
        | while IFS= read -r -d '' name; do
            if [[ -e $name || -L $name ]]; then printf '%s\0' "$name"; fi
        done | tar --null -czf "$archive" -T -)
    slice scp "$archive" "$TPU:cone_jax.tar.gz" --worker=all
    rm -f "$archive"
    slice ssh "$TPU" --worker=all --command="mkdir -p cone_jax && tar -xzf cone_jax.tar.gz -C cone_jax"
    on_workers all install
}

# Everything a run needs is in its flags; what would be lost with the slice is refused.
check_flags() {
    local flag workdir='' config=''
    for flag in "$@"; do
        case $flag in
            --workdir=*) workdir=${flag#--workdir=} ;;
            --config=*) config=${flag#--config=} ;;
        esac
    done
    [[ $workdir == *://* || $workdir == /* ]] \
        || fail "--workdir ('$workdir') must be a bucket, gs://BUCKET/RUN, or a disk that all workers share"
    [[ $config ]] || fail "--config is missing, such as --config=configs/imagenet.py:resnet50"
    [[ $config != /* ]] || fail "--config ($config) must be in this tree, which is what the workers get"
}

start() {
    check_flags "$@"
    on_workers all start "$@"
}

follow() {
    on_workers 0 follow
}

status() {
    local now
    now=$(state)
    echo "$TPU in $ZONE: $now"
    if [[ $now == READY ]]; then on_workers all status; fi
}

stop() {
    on_workers all stop
}

# Whether main.py runs on the slice.
is_running() {
    [[ ! $dry_run ]] && on_workers all status 2>/dev/null | grep -q ': running since'
}

run() {
    local code again=0
    check_flags "$@"
    create
    while true; do
        # A run that goes on is left alone: its tree must not be replaced under it.
        is_running || install
        start "$@"
        code=0
        follow || code=$?
        case $code in
            0 | 2) exit "$code" ;;
        esac
        # A run that failed by itself would fail again. One that lost a worker would not.
        if [[ $(state) == READY ]]; then
            if on_workers all check || ((++again > 20)); then
                on_workers all status
                exit 1
            fi
            on_workers all stop # the others, where they have not noticed yet
        fi
        say "the run was cut off; continuing"
        sleep "$pause"
        create patient
    done
}

dry_run=''
case ${1:-} in
    -h | --help) usage && exit ;;
    --dry-run) dry_run=1 && shift ;;
esac
command=${1:-}
retry=${RETRY:-30}
pause=$((retry < 5 ? retry : 5)) # a slice that shuts down says READY a moment longer
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case $command in
    run | create | install | start | follow | status | stop | delete) shift ;;
    *) fail "'$command' is not a command; see scripts/tpu_pod.sh --help" ;;
esac
[[ ${TPU:-} ]] || fail "TPU is not set; give the name of the slice"
[[ ${ZONE:-} ]] || fail "ZONE is not set; give the zone of $TPU, such as us-west4-a"
"$command" "$@"
