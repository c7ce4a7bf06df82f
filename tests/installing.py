# SPDX-License-Identifier: Apache-2.0
"""Installs real services from the package index, each in an environment that is kept; or reports that it cannot.

Each environment also has cyborg_quota as a user installs it: otherwise a module that is missing in the package would be
found in the source tree.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence

TOP = pathlib.Path(__file__).parents[1]
INSTALL_TIMEOUT_SECONDS = 900.0
STEP_TIMEOUT_SECONDS = 300.0
PACKAGE = "cyborg_quota"
PACKAGED = ("LICENSE", "README.rst", "pyproject.toml", "setup.cfg")
"""The files from which the package is built, besides its code."""
DATA = ("etc", "share")
"""The directories of the other files that it installs."""


class NotAvailable(Exception):
    """A real service cannot be installed here; the message gives the reason."""


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
    """Let one process at a time run the block."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def stamp_of(*parts: str) -> str:
    """Return a text that changes with the interpreter and with each of the parts."""
    return hashlib.sha256("\n".join((sys.version, *parts)).encode()).hexdigest()


@contextlib.contextmanager
def stamped(path: pathlib.Path, stamp: str) -> Iterator[bool]:
    """Yield whether an object must be made again; after the block has made it, the stamp records that."""
    old = path.exists() and path.read_text() == stamp
    if not old:
        path.unlink(missing_ok=True)
    yield not old
    path.write_text(stamp)


def make_environment(workdir: pathlib.Path) -> pathlib.Path:
    """Make an empty virtual environment, which replaces an existing one; returns its Python."""
    shutil.rmtree(workdir, ignore_errors=True)
    # (To install pip in it takes ten times as long as all else.)
    run([sys.executable, "-m", "venv", "--without-pip", str(workdir)], STEP_TIMEOUT_SECONDS)
    return workdir / "bin/python"


def pip_install(python: pathlib.Path, *what: str) -> None:
    """Install packages, with the pip of this Python (from 22.3 on)."""
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    # Modules are compiled when they are first imported: most of them never are.
    run([*pip, "install", "-q", "--disable-pip-version-check", "--no-compile", *what], INSTALL_TIMEOUT_SECONDS)


def package_files() -> list[pathlib.Path]:
    """Return the package's files in the tree, with relative paths and without bytecode."""
    return _files(PACKAGE)


def _files(*directories: str) -> list[pathlib.Path]:
    """(A test imports etc/wsgi, which then has bytecode: that is no reason to install the package again.)"""
    found = (path.relative_to(TOP) for name in directories for path in (TOP / name).rglob("*") if path.is_file())
    return sorted(path for path in found if "__pycache__" not in path.parts)


def package_stamp(*parts: str) -> str:
    """Return a text that changes with each file from which the package is built."""
    paths = [*map(pathlib.Path, PACKAGED), *_files(PACKAGE, *DATA)]
    return stamp_of(*parts, *(f"{path} {hashlib.sha256((TOP / path).read_bytes()).hexdigest()}" for path in paths))


def copy_sources(directory: pathlib.Path) -> None:
    """Copy everything from which the package is built."""
    for name in PACKAGED:
        shutil.copy(TOP / name, directory)
    for name in (PACKAGE, *DATA):
        shutil.copytree(TOP / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))


def install_package(python: pathlib.Path, extra: str) -> None:
    """Build and install cyborg_quota, replacing an installed one; needs setuptools in the environment.

    It is built from a copy: a build leaves a directory behind, and the next build would pack deleted modules from it.
    """
    with tempfile.TemporaryDirectory() as directory:
        copy = pathlib.Path(directory)
        copy_sources(copy)
        pip_install(python, "--no-build-isolation", f"{copy}[{extra}]")


def main(ensure: Callable[[], object]) -> None:
    """Make an environment, as a program; if that is impossible, print the reason."""
    try:
        ensure()
    except NotAvailable as reason:
        sys.exit(f"tests: the environment cannot be made: {reason}")


def ensure_services(
    label: str, directory: pathlib.Path, requirements: Sequence[str], sources: Sequence[str], extras: str = "mysql,api"
) -> pathlib.Path:
    """Install the services and cyborg_quota if they are missing or outdated; returns the directory of the programs.

    One process at a time does so. Raises NotAvailable.

    :param label: the start of the lines that are printed.
    :param sources: the files that say how they are installed: after a change, they are installed again.
    :param extras: with which cyborg_quota is installed.
    """
    directory.mkdir(exist_ok=True)
    texts = [pathlib.Path(path).read_text() for path in (__file__, *sources)]
    stamp = stamp_of(str(directory), *requirements, *texts)
    python = directory / "env/bin/python"
    with locked(directory / "lock"):
        with stamped(directory / "services.stamp", stamp) as needed:
            if needed:
                print(f"{label}: making {directory.name}", file=sys.stderr)
                make_environment(directory / "env")
                pip_install(python, *requirements)
        # An edited file of the package requires a new installation of the package, but not of the services.
        with stamped(directory / "ours.stamp", package_stamp(stamp)) as needed:
            if needed:
                install_package(python, extras)
    return python.parent


def run(command: list[str], timeout_seconds: float, **environment: str) -> None:
    """Run one step. Raises NotAvailable with the last line of its output."""
    try:
        ended = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_seconds,
            env={**os.environ, **environment},
        )
    except subprocess.TimeoutExpired:
        raise NotAvailable(f"{pathlib.Path(command[0]).name} took longer than {timeout_seconds:.0f} s") from None
    if ended.returncode != 0:
        last = (ended.stderr.strip() or ended.stdout.strip() or "no output").splitlines()[-1]
        raise NotAvailable(f"{' '.join([pathlib.Path(command[0]).name, *command[1:4]])} failed: {last}")
