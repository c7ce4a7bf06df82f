"""What a private server needs of the machine: a directory, a port, a program, its processes."""

import contextlib
import fcntl
import os
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

POLL_SECONDS = 0.02
SHM = Path("/dev/shm")
SHM_FREE_BYTES = 1 << 30
PREFIX = "cyborg-quota-servers-"
LOCK_NAME = "owner.lock"
# Below the range from which the kernel takes the ports of clients: a client that keeps trying a
# port of that range while the server is down can be given the very same port, and then talks to
# itself.
PORTS = range(15000, 32000)


class ServerError(Exception):
    """A server could not be made or started: one line, with the log's path when there is one."""


def new_directory(durable: bool) -> tuple[Path, IO[str]]:
    """A new directory for a server, locked as long as we live; those of dead owners are removed first."""
    # A durable server belongs on a disk: memory answers every fsync at once.
    if not durable and SHM.is_dir() and shutil.disk_usage(SHM).free > SHM_FREE_BYTES:
        directory, lock = _locked_directory(PREFIX, SHM)
    else:
        directory, lock = _locked_directory(PREFIX, Path(tempfile.gettempdir()))
    directory.chmod(0o711)  # the server's user passes through to what it owns
    return directory, lock


def private_directory(prefix: str, otherwise: Path) -> tuple[Path, IO[str]]:
    """The same for a service that runs as we do: in memory, or else in ``otherwise``.

    Not in the temporary directory: a test has one of its own, which ends with it.
    """
    return _locked_directory(prefix, SHM if os.access(SHM, os.W_OK) else otherwise)


def _locked_directory(prefix: str, parent: Path) -> tuple[Path, IO[str]]:
    for old in parent.glob(f"{prefix}*"):
        remove_if_abandoned(old)
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    lock = (directory / "new.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    # Nobody sees the lock before it is held.
    (directory / "new.lock").rename(directory / LOCK_NAME)
    return directory, lock


def remove_if_abandoned(directory: Path) -> None:
    # Refused means: in use, somebody else's, just being made, or already gone.
    with contextlib.suppress(OSError):
        if directory.lstat().st_uid != os.geteuid():
            return
        with (directory / LOCK_NAME).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)


def free_port() -> int:
    """A port that nobody has, and no other process that asks here gets while this one lives.

    A server may be down for a while, or use a port only now and then: not to be bound is not to be free. The mark is a
    name, held open, that the kernel forgets with the process. (And chance of its own: what seeds the tests' would seed
    them all alike.)
    """
    for port in random.SystemRandom().sample(PORTS, min(200, len(PORTS))):
        mark = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe, contextlib.suppress(OSError):
            mark.bind(f"\0cyborg-quota-port-{port}")
            probe.bind(("127.0.0.1", port))
            mark.detach()
            return port
        mark.close()
    raise ServerError("no free port on 127.0.0.1")


def search_path() -> str:
    """Where server programs are: PostgreSQL's own directories, newest first, then the usual."""
    versions = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr").glob("pgsql-*/bin")]
    versions.sort(key=lambda path: int("".join(filter(str.isdigit, str(path))) or 0), reverse=True)
    usual = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/libexec", "/usr/bin", "/bin"]
    return os.pathsep.join([*map(str, versions), *usual, os.environ.get("PATH", "")])


def find(program: str) -> str:
    found = shutil.which(program, path=search_path())
    if found is None:
        raise ServerError(f"{program} is not installed (bindep.txt names the packages)")
    return found


def descendants(pid: int) -> list[int]:
    """The children of a process, and theirs."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += [child, *descendants(child)]
    return found


def alive(pid: int) -> bool:
    """Whether this process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def stopped(pid: int) -> bool:
    """Whether every thread of this process stands still behind SIGSTOP; or is gone."""
    states = set()
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            states.add(path.read_text().rpartition(") ")[2][0])
    return states <= set("TtZX")


def wait_until(condition: Callable[[], bool], timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
