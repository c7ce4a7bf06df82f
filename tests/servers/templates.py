"""Copies of empty data directories: to copy one takes a fifth of the processor time that making it takes.

The processes that ``python -m tests.servers run`` starts use those of that process.
"""

import atexit
import contextlib
import functools
import os
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.servers import machine

VARIABLE = "CYBORG_QUOTA_TEST_TEMPLATES"
"""The environment variable with the directory of the process that has made the copies."""

# Makes the data, and keeps a copy of it; of several that do so concurrently, the first one's copy stays.
MAKE = """
data=$1 place=$2
shift 2
"$@" && { cp -a "$data" "$place/new.$$" && mv -T "$place/new.$$" "$place/data" || rm -rf "$place/new.$$"; }
"""


def command(kind: str, make: Sequence[str], data: Path) -> list[str]:
    """Return the command that fills ``data``: ``make`` for the first server of its kind, then a copy.

    Its user is the owner of ``data``.
    """
    place = directory() / kind
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
        os.chown(place, data.stat().st_uid, data.stat().st_gid)
    if (place / "data").exists():
        return ["cp", "-a", f"{place}/data/.", str(data)]
    return ["sh", "-c", MAKE, "sh", str(data), str(place), *make]


def directory() -> Path:
    """Return the directory of the copies: that of VARIABLE, or else one of this process."""
    given = Path(os.environ.get(VARIABLE) or "/nonexistent")
    return given if given.is_dir() else _own_directory(os.getpid())


def secret(name: str) -> str:
    """Return a random text that is the same in all processes that use these copies."""
    path = directory() / name
    if not path.exists():
        handle, new = tempfile.mkstemp(dir=path.parent)
        with open(handle, "w") as file:
            file.write(secrets.token_hex(16))
        with contextlib.suppress(FileExistsError):
            os.link(new, path)
        os.unlink(new)
    return path.read_text()


@functools.cache
def _own_directory(pid: int) -> Path:
    path, lock = machine.new_directory(durable=False)

    def remove() -> None:
        if os.getpid() == pid:
            shutil.rmtree(path, ignore_errors=True)
            lock.close()

    atexit.register(remove)
    return path
