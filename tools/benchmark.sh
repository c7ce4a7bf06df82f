#!/usr/bin/env bash
# Our speed beside the bare driver's and Cinder's, on private servers with their default durability. Needs what
# tools/test.sh has installed (run that first). Leaves a table on stdout, and benchmarks.json; extra arguments go to
# benchmarks.speed (--help tells).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[[ -x .venv-test/bin/python ]] || { echo "tools/benchmark.sh: run tools/test.sh once, it makes .venv-test" >&2; exit 1; }

# Cinder pins other versions of what we share: it has an environment of its own.
cinder=$PWD/.venv-cinder
if [[ ! -x $cinder/bin/cinder-manage ]]; then
    echo "tools/benchmark.sh: installing Cinder 29 in ${cinder##*/}" >&2
    rm -rf "$cinder"
    python3 -m venv "$cinder"
    "$cinder/bin/python" -m pip install -qq --disable-pip-version-check 'cinder==29.*' PyMySQL psycopg2-binary >&2
fi

.venv-test/bin/python -m tests.servers run --durable -- bash -c '
    set -e
    .venv-test/bin/python -m benchmarks.speed --cinder "$1" --json benchmarks.json "${@:2}"
    .venv-test/bin/python -m benchmarks.tree
' bash "$cinder/bin/python" "$@"
