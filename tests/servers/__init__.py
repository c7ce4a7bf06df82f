"""Private MariaDB and PostgreSQL servers, made for one test run and removed at its end.

From Python::

    with servers.MariaDB() as server:
        engine = sqlalchemy.create_engine(server.url)

From a shell, both servers, with their URLs in the environment of a command; the exit status is that of the command::

    python -m tests.servers run -- stestr run

They listen on a free port of 127.0.0.1 only, with a random password, and read no configuration of the machine; no other
server is touched. Each is ended by its own process ID, and by the kernel when its owner is killed.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from tests.servers.base import Server
from tests.servers.machine import ServerError
from tests.servers.mariadb import MariaDB
from tests.servers.postgresql import PostgreSQL

__all__ = ["KINDS", "MariaDB", "PostgreSQL", "Server", "ServerError", "running"]

KINDS: tuple[type[Server], ...] = (MariaDB, PostgreSQL)


@contextlib.contextmanager
def running(
    kinds: Sequence[type[Server]] = KINDS, *, durable: bool = False
) -> Iterator[tuple[list[Server], list[ServerError]]]:
    """Start these servers concurrently; yields those that run, and the reasons why the others do not."""
    started: list[Server] = []
    errors: list[ServerError] = []
    with contextlib.ExitStack() as stack:
        candidates = [kind(durable=durable) for kind in kinds]
        for server in candidates:
            stack.callback(server.close)
        ready = list(_attempt([(server, server.prepare) for server in candidates], errors))
        launched = list(_attempt([(server, server.launch) for server in ready], errors))
        started += _attempt([(server, server.wait) for server in launched], errors)
        yield started, errors


def _attempt(steps: Sequence[tuple[Server, Callable[[], None]]], errors: list[ServerError]) -> Iterator[Server]:
    for server, step in steps:
        try:
            step()
        except ServerError as error:
            errors.append(error)
        else:
            yield server
