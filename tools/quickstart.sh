#!/usr/bin/env bash
# Installs cyborg_quota from a fresh clone, and charges a trace under a limit, on SQLite. Needs python3 with venv. Makes
# a virtual environment (.venv, or $CYBORG_QUOTA_VENV) and a database under var/. It can be run again.
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
rm -rf build # otherwise modules of an earlier build that were deleted since would be installed
"$venv/bin/python" -m pip install -qq --disable-pip-version-check .
PATH=$venv/bin:$PATH

step "2. Make the tables in a new SQLite database: $database"
mkdir -p "${database%/*}"
rm -f "$database" "$database-wal" "$database-shm"
# Three variables configure it; a file (--config-file) can be used instead.
export OS_DATABASE__CONNECTION=sqlite:///$database OS_LIMITS__DRIVER=config OS_LIMITS__LIMITS=gpu:4
show cyborg-quota db sync

step "3. Charge a small trace of accelerator attaches, with a limit of 4 GPUs per project"
show cyborg-quota replay etc/cyborg_quota/traces/example.csv

step "4. What each project holds now"
show cyborg-quota list --usage

step "Done. To continue by hand:"
cat <<END
export PATH="$venv/bin:\$PATH" OS_DATABASE__CONNECTION="$OS_DATABASE__CONNECTION" \\
    OS_LIMITS__DRIVER=config OS_LIMITS__LIMITS=gpu:4
cyborg-quota --help
END
