#!/usr/bin/env bash
# Runs the fault tests for a longer time, on private servers. Run tools/test.sh first: it installs what is needed.
#
#   tools/soak.sh [--minutes N] [--seed S] [--only NAME] [--list] [--json FILE]    --help describes the options
#
# Prints a table on stdout, and writes soak.json; the exit status is 0 if no check failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${CYBORG_QUOTA_PYTHON:-$PWD/.venv-test/bin/python}
[[ -x $python ]] || { echo "tools/soak.sh: run tools/test.sh first, which makes .venv-test" >&2; exit 1; }
case " $* " in
    *" --help "* | *" -h "* | *" --list "*) exec "$python" -m tests.faults.soak "$@" ;;
esac
exec "$python" -m tests.servers run -- "$python" -m tests.faults.soak "$@"
