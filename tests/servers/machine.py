"""The resources of the machine that a private server needs: a directory, a port, a program, processes."""

import contextlib
import fcntl
import os
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from tests.installing import NotAvailable

POLL_SECONDS = 0.02
SHM = Path("/dev/shm")
SHM_FREE_BYTES = 1 << 30
PREFIX = "cyborg-quota-servers-"
LOCK_NAME = "owner.lock"
# Below the range from which the kernel takes client ports: a client that retries a port of that range while the server
# is down can be given the same port, and then connects to itself.
PORTS = range(15000, 32000)


class ServerError(NotAvailable):
    """A server cannot be made or started. The message is one line, with the path of the log if there is one."""


def new_directory(durable: bool) -> tuple[Path, IO[str]]:
    """Make a directory for a server, locked while this process lives; directories of dead owners are removed first."""
    # A durable server needs a disk: memory answers every fsync immediately.
    is_in_memory = not durable and SHM.is_dir() and shutil.disk_usage(SHM).free > SHM_FREE_BYTES
    directory, lock = _locked_directory(PREFIX, SHM if is_in_memory else Path(tempfile.gettempdir()))
    directory.chmod(0o711)  # the server's user needs access to its subdirectories
    return directory, lock


def private_directory(prefix: str, otherwise: Path) -> tuple[Path, IO[str]]:
    """Make such a directory for a service that runs as this user: in memory, or else in ``otherwise``.

    It is not in the temporary directory, which a test replaces by one of its own that is removed at its end.
    """
    return _locked_directory(prefix, SHM if os.access(SHM, os.W_OK) else otherwise)


def _locked_directory(prefix: str, parent: Path) -> tuple[Path, IO[str]]:
    for old in parent.glob(f"{prefix}*"):
        remove_if_abandoned(old)
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    lock = (directory / "new.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    # The lock is taken before other processes can see the directory.
    (directory / "new.lock").rename(directory / LOCK_NAME)
    return directory, lock


def remove_if_abandoned(directory: Path) -> None:
    # Refused means: in use, owned by another user, just being made, or already removed.
    with contextlib.suppress(OSError):
        if directory.lstat().st_uid != os.geteuid():
            return
        with (directory / LOCK_NAME).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)


def free_port() -> int:
    """Return a free port that no other process gets from this function while this process lives.

    A server may be down for some time, so a port that is not bound may still be in use. The port is marked by an
    abstract socket name, which the kernel releases with the process. (The random generator is separate, because tests
    that seed the global one with the same number would all draw the same ports.)
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


def ends_with_parent(command: Sequence[str], signal: str = "KILL") -> list[str]:
    """Return the command that gets this signal when the process that started it ends (if setpriv is installed)."""
    setpriv = shutil.which("setpriv")
    return [*([setpriv, "--pdeathsig", signal, "--"] if setpriv else []), *command]


def search_path() -> str:
    """Return the directories of server programs: PostgreSQL's own, newest first, then the usual ones."""
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
    """Return the children of a process, and their descendants."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += [child, *descendants(child)]
    return found


def alive(pid: int) -> bool:
    """Return whether this process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def stopped(pid: int) -> bool:
    """Return whether every thread of this process is stopped by SIGSTOP, or the process is gone."""
    states = set()
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            states.add(path.read_text().rpartition(") ")[2][0])
    return states <= set("TtZX")


def wait_until(condition: Callable[[], bool], timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
