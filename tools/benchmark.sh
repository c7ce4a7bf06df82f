#!/usr/bin/env bash
# All benchmarks beside the bare driver and Cinder's quota, on private servers with their default durability, their data
# on the disk of the temporary directory. About a quarter of an hour; --short: three minutes; --only CASE; --help tells.
# Needs what tools/test.sh has installed (run that first). Leaves a table on stdout, and benchmarks.json.
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

.venv-test/bin/python -m tests.servers run --durable -- \
    .venv-test/bin/python -m benchmarks --cinder "$cinder/bin/python" --json benchmarks.json "$@"
