#!/usr/bin/env bash
# publish_docs.sh REF [--push]: builds the site and puts it beside the versions published before.
#
# On the branch gh-pages every version has a folder, and versions.json names them all, from which
# readers choose. refs/heads/main becomes "dev"; refs/tags/v0.2.1 becomes "0.2", and "latest".
set -euo pipefail
cd "$(dirname "$0")/.."
ref=$1
shift
export PATH="$PWD/.venv/docs/bin:$PATH" NO_MKDOCS_2_WARNING=1
case "$ref" in
    refs/heads/main) mike deploy "$@" dev ;;
    refs/tags/v*)
        version=${ref#refs/tags/v}
        mike deploy --update-aliases "$@" "${version%.*}" latest
        mike set-default "$@" latest
        ;;
    *)
        echo "error: $ref is neither refs/heads/main nor a tag v0.0.0" >&2
        exit 2
        ;;
esac
