#!/usr/bin/env bash
# Runs the whole suite on SQLite and on private MariaDB and PostgreSQL servers.
#
#   tools/test.sh [FILTER...]    the arguments are passed to stestr: a regular expression, --serial, ...
#
# Needs Python 3.10 or later: CYBORG_QUOTA_PYTHON, or Debian's python3, or the python3 in PATH. (Debian's is built with all
# optimizations, and runs the tests up to twice as fast as one that was built without them.) Makes .venv-test,
# .venv-keystone (a real Keystone), .venv-horizon (a real Horizon), and .venv-cyborg and .venv-cyborg16 (a real Cyborg). On
# Debian, as root or with sudo without a prompt, it also installs the system packages of bindep.txt, unless
# CYBORG_QUOTA_NO_INSTALL=1 is set. The last line is `N passed, N failed, N skipped`; the exit status is 0 if no test failed
# and at least one ran.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=$PWD/.venv-test

say() { printf 'tools/test.sh: %s\n' "$*" >&2; }

as_root() {
    if [[ $EUID -eq 0 ]]; then "$@"; else sudo -n "$@"; fi
}

may_install() {
    [[ ${CYBORG_QUOTA_NO_INSTALL:-} != 1 ]] && command -v apt-get >/dev/null &&
        { [[ $EUID -eq 0 ]] || sudo -n true 2>/dev/null; }
}

# Prints the Debian packages of bindep.txt that are not installed, one a line.
missing_packages() {
    command -v dpkg-query >/dev/null || return 0
    local name selector
    while read -r name selector; do
        [[ $selector == *platform:dpkg* ]] || continue
        dpkg-query -W -f '${db:Status-Abbrev}' "$name" 2>/dev/null | grep -q '^ii' || echo "$name"
    done < <(grep -v '^ *#' bindep.txt)
}

# Installs packages without starting a service or making a database cluster: two files of Debian's packaging prevent
# that. They are created for the duration of the installation, unless they exist. --no-remove: no installed package is
# removed.
install_packages() (
    created=()
    trap '[[ ${#created[@]} -eq 0 ]] || as_root rm -f "${created[@]}"' EXIT
    if [[ ! -e /usr/sbin/policy-rc.d ]]; then
        created+=(/usr/sbin/policy-rc.d)
        printf '#!/bin/sh\nexit 101\n' | as_root tee /usr/sbin/policy-rc.d >/dev/null
        as_root chmod 755 /usr/sbin/policy-rc.d
    fi
    no_cluster=/etc/postgresql-common/createcluster.d/cyborg-quota-tests.conf
    if [[ ! -e $no_cluster ]]; then
        created+=("$no_cluster")
        as_root mkdir -p "${no_cluster%/*}"
        echo "create_main_cluster = false" | as_root tee "$no_cluster" >/dev/null
    fi
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends --no-remove "$@"
)

ensure_system() {
    local missing
    mapfile -t missing < <(missing_packages)
    [[ ${#missing[@]} -gt 0 ]] || return 0
    if ! may_install; then
        say "missing, and not installed because that needs root or sudo: ${missing[*]}"
    else
        say "installing ${missing[*]}"
        install_packages "${missing[@]}" >/dev/null || say "not installed: ${missing[*]}"
    fi
}

# Prints the Python with which the environments are made.
choose_python() {
    local of_debian=/usr/bin/python3
    if [[ -n ${CYBORG_QUOTA_PYTHON:-} ]]; then
        echo "$CYBORG_QUOTA_PYTHON"
    elif command -v dpkg-query >/dev/null && [[ -x $of_debian ]] &&
        "$of_debian" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        echo "$of_debian"
    else
        echo python3
    fi
}

# Prints what changes with everything from which the virtual environment is made, and if it was moved.
stamp() {
    { echo "$PWD"; "$python" -c 'import sys; print(sys.version, sys.base_prefix)'; cat setup.cfg pyproject.toml; } | sha256sum
}

# Says whether the virtual environment is complete.
has_venv() { [[ -f $venv/stamp && $(<"$venv/stamp") == "$(stamp)" ]]; }

pip_install() { "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-compile "$@" >&2; }

# Makes a virtual environment with a new pip, which needs half the processor time of Debian's to find what to install.
begin_venv() {
    say "making ${venv##*/}"
    rm -rf "$venv"
    "$python" -m venv "$venv"
    pip_install --upgrade pip
}

# Modules are compiled when they are first imported: most of them never are.
complete_venv() {
    pip_install --editable '.[test]'
    stamp >"$venv/stamp"
}

# Prints the number of runs that stestr has recorded.
runs() { cat .stestr/next-stream 2>/dev/null || echo 0; }

unset PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
# If the environment is active, its own python3 must not be used to remove and make it.
[[ ${VIRTUAL_ENV:-} != "$venv" ]] || PATH=${PATH//"$venv/bin:"/}

python=$(choose_python)

# The installations run concurrently; only on a Debian system without python3-venv, the system packages come first.
trap wait EXIT
if "$python" -c 'import ensurepip' 2>/dev/null; then ensure_system & else ensure_system; fi
has_venv || begin_venv
if [[ $# -eq 0 ]]; then
    # The whole suite needs them. Made here, their time does not count as that of a test. If one cannot be made, its
    # tests are skipped with the reason.
    "$venv/bin/python" -m tests.cyborgs.environment &
    "$venv/bin/python" -m tests.integration.environment &
    "$venv/bin/python" -m tests.horizon.environment &
fi
has_venv || complete_venv
wait
trap - EXIT

# The tests run the commands and the Python of the environment, even if they call them by name.
export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH
export OS_TEST_TIMEOUT=${OS_TEST_TIMEOUT:-300}

before=$(runs)
status=0
if [[ $# -gt 0 ]]; then
    python -m tests.servers run -- stestr run --slowest "$@" || status=$?
else
    python -m tests.servers run -- stestr run --slowest --worker-file tools/workers.yaml || status=$?
fi

if [[ $(runs) == "$before" ]]; then
    say "no test ran"
    # It is a failure if the tests cannot be loaded, or if a required server does not start.
    echo "0 passed, $((status != 0)) failed, 0 skipped"
    exit 1
fi
stestr last --subunit | python tools/summary.py --status "$status"
