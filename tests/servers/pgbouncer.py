"""A private PgBouncer in front of a PostgreSQL server."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping
from pathlib import Path

import sqlalchemy

from tests.servers import machine
from tests.servers.base import MAX_CONNECTIONS, Server

CONFIG = """\
[databases]
* = host={host} port={server_port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
"""


class PgBouncer(Server):
    """Serves every database of a PostgreSQL server, for the user of ``server_url``, with the same password.

    :param pool_mode: session, transaction or statement, as in PgBouncer's configuration.
    """

    name = "pgbouncer"
    users = ("postgres", "nobody")
    stop_signal = signal.SIGTERM  # immediate shutdown, even with open connections
    death_signal = "KILL"

    def __init__(self, server_url: str, pool_mode: str, *, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(settings=settings)
        self._server_url = sqlalchemy.make_url(server_url)
        self._pool_mode = pool_mode

    @property
    def url(self) -> str:
        return self.url_of(str(self._server_url.database))

    def url_of(self, database: str) -> str:
        """Return the SQLAlchemy URL of a database of the server, through PgBouncer."""
        url = self._server_url.set(host="127.0.0.1", port=self.port, database=database)
        return url.render_as_string(hide_password=False)

    def _initialization(self, data: Path) -> list[str]:
        machine.find("pgbouncer")
        users = self._private_file("users.txt", f'"{self._server_url.username}" "{self._server_url.password}"\n')
        settings = {"pool_mode": self._pool_mode, "max_client_conn": str(MAX_CONNECTIONS), **self.settings}
        server = {"host": self._server_url.host, "server_port": self._server_url.port}
        text = CONFIG.format(**server, port=self.port, users=users)
        self._private_file("pgbouncer.ini", text + "".join(f"{name} = {value}\n" for name, value in settings.items()))
        return []

    def _answers(self) -> bool:
        """Sends a single statement: in statement mode there are no transactions."""
        import psycopg2  # a dependency only of the tests that use PostgreSQL

        address = self.url.replace("+psycopg2", "")
        with contextlib.suppress(psycopg2.Error), contextlib.closing(psycopg2.connect(address)) as connection:
            connection.autocommit = True
            connection.cursor().execute("SELECT 1")
            return True
        return False

    def _command(self, data: Path) -> list[str]:
        return [machine.find("pgbouncer"), str(data.parent / "pgbouncer.ini")]
