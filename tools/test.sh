#!/usr/bin/env bash
# Runs the whole suite on SQLite and on private MariaDB and PostgreSQL servers.
#
#   tools/test.sh [FILTER...]    what follows goes to stestr: a regular expression, --serial, ...
#
# Needs python3. The rest it makes: .venv-test, .venv-keystone (a real Keystone), .venv-cyborg and .venv-cyborg16 (a real Cyborg),
# and, on Debian as root or with sudo and no prompt, the system packages of bindep.txt. CYBORG_QUOTA_NO_INSTALL=1 forbids the latter.
# The last line is `N passed, N failed, N skipped`; the exit status is 0 when none failed and some ran.
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

# The packages of bindep.txt for Debian that are not installed, one a line.
missing_packages() {
    command -v dpkg-query >/dev/null || return 0
    local name selector
    while read -r name selector; do
        [[ $selector == *platform:dpkg* ]] || continue
        dpkg-query -W -f '${db:Status-Abbrev}' "$name" 2>/dev/null | grep -q '^ii' || echo "$name"
    done < <(grep -v '^ *#' bindep.txt)
}

# Installs packages, and sees to it that none of them starts a service or makes a database of its own:
# both are Debian's switches for that, set for the length of the installation and only where they are not
# already set. --no-remove: never at the price of a package that is there.
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
        say "missing, and not installed for want of rights: ${missing[*]}"
    else
        say "installing ${missing[*]}"
        install_packages "${missing[@]}" >/dev/null || say "not installed: ${missing[*]}"
    fi
}

# Made anew whenever what it is made of has changed; a venv that was moved or half made counts as changed.
ensure_venv() {
    local stamp
    stamp=$({ echo "$PWD"; python3 --version; cat setup.cfg pyproject.toml; } | sha256sum)
    [[ -f $venv/stamp && $(<"$venv/stamp") == "$stamp" ]] && return
    say "making ${venv##*/}"
    rm -rf "$venv"
    python3 -m venv "$venv"
    # Compiled when first imported: most of it never is.
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-compile --editable '.[test]' >&2
    echo "$stamp" >"$venv/stamp"
}

# How many runs stestr has recorded.
runs() { cat .stestr/next-stream 2>/dev/null || echo 0; }

unset PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
# Where the environment is active, its python3 must not be the one that removes and makes it.
[[ ${VIRTUAL_ENV:-} != "$venv" ]] || PATH=${PATH//"$venv/bin:"/}

# Everything that is installed, side by side; only on a Debian without python3-venv must that be there first.
trap wait EXIT
if python3 -c 'import ensurepip' 2>/dev/null; then ensure_system & else ensure_system; fi
if [[ $# -eq 0 ]]; then
    # The whole suite needs them; made here, their time is not that of a test. Where one cannot be had, the tests say so.
    python3 -m tests.cyborgs.environment &
    python3 -m tests.integration.environment &
fi
ensure_venv
wait
trap - EXIT

# Commands and Python in the tests are those of the environment, whichever way they are called.
export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH
export OS_TEST_TIMEOUT=${OS_TEST_TIMEOUT:-300}

if [[ $# -eq 0 ]]; then
    # Much of it waits for services: four workers keep two cores busy, and each has about as much to do.
    set -- --worker-file tools/workers.yaml
fi

before=$(runs)
status=0
python -m tests.servers run -- \
    stestr run --slowest "$@" || status=$?

if [[ $(runs) == "$before" ]]; then
    say "no test ran"
    # Tests that cannot be found, or a required server that does not start, are an error.
    echo "0 passed, $((status != 0)) failed, 0 skipped"
    exit 1
fi
stestr last --subunit | python tools/summary.py --status "$status"
