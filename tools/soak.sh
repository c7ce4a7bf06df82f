#!/usr/bin/env bash
# The fault tests in their long form, on private servers. Needs what tools/test.sh has installed (run that first).
#
#   tools/soak.sh [--minutes N] [--seed S] [--only NAME] [--list] [--json FILE]    --help tells more
#
# Leaves a table on stdout, and soak.json; the exit status is 0 when nothing was found.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${CYBORG_QUOTA_PYTHON:-$PWD/.venv-test/bin/python}
[[ -x $python ]] || { echo "tools/soak.sh: run tools/test.sh once, it makes .venv-test" >&2; exit 1; }
case " $* " in
    *" --help "* | *" -h "* | *" --list "*) exec "$python" -m tests.faults.soak "$@" ;;
esac
exec "$python" -m tests.servers run -- "$python" -m tests.faults.soak "$@"
