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
from collections.abc import Iterator, Sequence

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
    """Start these servers; yields those that run, and the reasons why the others do not."""
    started: list[Server] = []
    errors: list[ServerError] = []
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            try:
                started.append(stack.enter_context(kind(durable=durable)))
            except ServerError as error:
                errors.append(error)
        yield started, errors
