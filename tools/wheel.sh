#!/usr/bin/env bash
# Builds the wheel of cyborg_quota, for hosts that install it without the source tree.
#
#   tools/wheel.sh [DIRECTORY]    writes cyborg_quota-VERSION-py3-none-any.whl to DIRECTORY (default: dist)
#
# Needs python3 with venv, and a package index for setuptools, which builds the wheel. Prints the path of the wheel.
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p "${1:-dist}"
directory=$(cd "${1:-dist}" && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Built from a copy: setuptools leaves a build directory behind, and would pack deleted modules from it the next time.
mkdir "$work/tree" "$work/wheel"
cp -R "$source"/{LICENSE,README.rst,pyproject.toml,setup.cfg,cyborg_quota,etc,share} "$work/tree"
find "$work/tree" -name __pycache__ -prune -exec rm -rf {} +

if ! python3 -m pip --version >/dev/null 2>&1; then
    python3 -m venv "$work/venv" # Debian's python3 has no pip of its own
    PATH=$work/venv/bin:$PATH
fi
python3 -m pip wheel -q --disable-pip-version-check --no-deps --wheel-dir "$work/wheel" "$work/tree"
wheel=("$work"/wheel/cyborg_quota-*.whl)
mv -f "${wheel[0]}" "$directory/"
echo "$directory/${wheel[0]##*/}"
