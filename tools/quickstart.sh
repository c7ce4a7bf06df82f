#!/usr/bin/env bash
# From a fresh clone to a trace charged under a limit, on SQLite. Needs python3 with venv; leaves a virtual
# environment (.venv, or $CYBORG_QUOTA_VENV) and a database under var/. Safe to run again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${CYBORG_QUOTA_VENV:-$PWD/.venv}
database=$PWD/var/quickstart.db

step() { printf '\n== %s\n' "$1"; }
# Prints a command, then runs it.
show() { printf '$ %s\n' "$*"; "$@"; }

step "1. Install cyborg_quota in a virtual environment: $venv"
if [[ ! -x $venv/bin/pip ]] && ! python3 -m venv "$venv"; then
    echo "tools/quickstart.sh: python3 cannot make a virtual environment (Debian: apt-get install python3-venv)" >&2
    exit 1
fi
rm -rf build # else what an earlier build left there, and the tree no longer has, is installed again
"$venv/bin/python" -m pip install -qq --disable-pip-version-check .
PATH=$venv/bin:$PATH

step "2. Make the tables in a fresh SQLite database: $database"
mkdir -p "${database%/*}"
rm -f "$database" "$database-wal" "$database-shm"
# The configuration is three variables; a file (--config-file) would do as well.
export OS_DATABASE__CONNECTION=sqlite:///$database OS_LIMITS__DRIVER=config OS_LIMITS__LIMITS=gpu:4
show cyborg-quota db sync

step "3. Charge a small trace of accelerator attaches, with a limit of 4 GPUs per project"
show cyborg-quota replay etc/cyborg_quota/traces/example.csv

step "4. What each project holds now"
show cyborg-quota usage list

step "Done. To go on by hand:"
cat <<END
export PATH="$venv/bin:\$PATH" OS_DATABASE__CONNECTION="$OS_DATABASE__CONNECTION" \\
    OS_LIMITS__DRIVER=config OS_LIMITS__LIMITS=gpu:4
cyborg-quota --help
END
