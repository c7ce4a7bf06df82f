#!/usr/bin/env bash
# Runs all benchmarks, compared with the bare driver and with Cinder's quota, on private servers with their default
# durability and with their data on the disk of the temporary directory. Takes about 15 minutes, with --short 3 minutes;
# --only CASE runs one case; --against COMMIT compares the case attach with another commit, which gets a worktree and an
# environment in .against; --help lists all options. Run tools/test.sh first: it installs what is needed. Prints a
# table on stdout, and writes benchmarks.json.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[[ -x .venv-test/bin/python ]] || { echo "tools/benchmark.sh: run tools/test.sh first, which makes .venv-test" >&2; exit 1; }

# Cinder requires other versions of the same libraries, so it has an environment of its own.
cinder=$PWD/.venv-cinder
if [[ " $*" != *" --against"* && ! -x $cinder/bin/cinder-manage ]]; then
    echo "tools/benchmark.sh: installing Cinder 29 in ${cinder##*/}" >&2
    rm -rf "$cinder"
    python3 -m venv "$cinder"
    "$cinder/bin/python" -m pip install -qq --disable-pip-version-check 'cinder==29.*' PyMySQL psycopg2-binary >&2
fi

.venv-test/bin/python -m tests.servers run --durable -- \
    .venv-test/bin/python -m benchmarks --cinder "$cinder/bin/python" --json benchmarks.json "$@"
