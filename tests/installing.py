# SPDX-License-Identifier: Apache-2.0
"""Real services from the package index, in environments of their own: made once, kept, or not to be had here.

And cyborg_quota beside them as a user has it: what is left out of the package runs from the tree, and nowhere else.
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
from collections.abc import Iterator

TOP = pathlib.Path(__file__).parents[1]
INSTALL_TIMEOUT_SECONDS = 240.0
STEP_TIMEOUT_SECONDS = 60.0
PACKAGE = "cyborg_quota"
PACKAGED = ("LICENSE", "README.rst", "pyproject.toml", "setup.cfg")
"""What the package is built from, besides its code."""


class NotAvailable(Exception):
    """A real service cannot be had here; the message says why."""


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
    """One process at a time."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def stamp_of(*parts: str) -> str:
    """Changes with the interpreter, and with whatever else a thing is made of."""
    return hashlib.sha256("\n".join((sys.version, *parts)).encode()).hexdigest()


@contextlib.contextmanager
def stamped(path: pathlib.Path, stamp: str) -> Iterator[bool]:
    """Whether a thing has to be made anew; once the block has made it, the stamp says so."""
    old = path.exists() and path.read_text() == stamp
    if not old:
        path.unlink(missing_ok=True)
    yield not old
    path.write_text(stamp)


def make_environment(place: pathlib.Path) -> pathlib.Path:
    """An empty virtual environment in place of what is there; returns its Python."""
    shutil.rmtree(place, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(place)], STEP_TIMEOUT_SECONDS)
    return place / "bin/python"


def pip_install(python: pathlib.Path, *what: str) -> None:
    # Compiled when first imported: most of it never is.
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile"]
    run([*pip, *what], INSTALL_TIMEOUT_SECONDS)


def package_files() -> list[pathlib.Path]:
    """The package's own files in the tree, relative to it; without what Python has written."""
    found = (path.relative_to(TOP) for path in (TOP / PACKAGE).rglob("*") if path.is_file())
    return sorted(path for path in found if "__pycache__" not in path.parts)


def package_stamp(*parts: str) -> str:
    """Changes with whatever the package is built from."""
    paths = [*map(pathlib.Path, PACKAGED), *package_files()]
    return stamp_of(*parts, *(f"{path} {hashlib.sha256((TOP / path).read_bytes()).hexdigest()}" for path in paths))


def install_package(python: pathlib.Path, extra: str) -> None:
    """Build cyborg_quota and install it, in place of what there is of it; needs setuptools in the environment.

    From a copy: a build leaves a directory behind, and the next one packs what has been deleted meanwhile.
    """
    with tempfile.TemporaryDirectory() as directory:
        copy = pathlib.Path(directory)
        for name in PACKAGED:
            shutil.copy(TOP / name, copy)
        shutil.copytree(TOP / PACKAGE, copy / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        pip_install(python, "--no-build-isolation", f"{copy}[{extra}]")


def run(command: list[str], timeout_seconds: float, **environment: str) -> None:
    """Run one step. Raises NotAvailable with the last line that it said."""
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
        last = (ended.stderr.strip() or ended.stdout.strip() or "nothing said").splitlines()[-1]
        raise NotAvailable(f"{' '.join([pathlib.Path(command[0]).name, *command[1:4]])} failed: {last}")
