"""A private PostgreSQL."""

import base64
import contextlib
import hashlib
import hmac
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.servers import machine, templates
from tests.servers.base import ADMIN, MAX_CONNECTIONS, Server


def _verifier(password: str) -> str:
    """Return what the server stores for a password (RFC 5802), with 1 iteration: a client computes all of them.

    PostgreSQL's own 4,096 take each connection some milliseconds.
    """
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    parts = (base64.b64encode(part).decode() for part in (salt, stored, hmac.digest(salted, b"Server Key", "sha256")))
    return "SCRAM-SHA-256$1:{}${}:{}".format(*parts)


class PostgreSQL(Server):
    name = "postgresql"
    variable = "CYBORG_QUOTA_TEST_POSTGRESQL"
    users = ("postgres", "nobody")
    stop_signal = signal.SIGINT  # "fast": ends the sessions, writes a checkpoint
    death_signal = "QUIT"  # "immediate": kills its children and removes its shared memory

    def __init__(self, *, durable: bool = False, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(durable=durable, settings=settings)
        self.password = templates.secret("password")  # the data, of which all have copies, contains it

    @property
    def url(self) -> str:
        return f"postgresql+psycopg2://{ADMIN}:{self.password}@127.0.0.1:{self.port}/postgres"

    def _initialization(self, data: Path) -> list[str]:
        password_file = self._private_file("password", _verifier(self.password))
        make = [
            machine.find("initdb"),
            f"--pgdata={data}",
            f"--username={ADMIN}",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
        ]
        return templates.command(self.name, make, data)

    def _command(self, data: Path) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": str(MAX_CONNECTIONS),
            # In the data directory, so that a killed server leaves nothing elsewhere.
            "dynamic_shared_memory_type": "mmap",
        }
        if not self.durable:
            # As for MariaDB; synchronous_commit=off was not faster, and loses answered commits.
            settings["fsync"] = "off"
        settings |= self.settings
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [machine.find("postgres"), "-D", str(data), *options]

    def _remove_traces(self, data: Path) -> None:
        # A server that was not shut down leaves its lock file. Its seventh line ends with the ID of a small segment of
        # System V shared memory, which nothing else removes.
        with contextlib.suppress(OSError, IndexError):
            segment = (data / "postmaster.pid").read_text().splitlines()[6].split()[-1]
            subprocess.run(["ipcrm", "-m", segment], stderr=subprocess.DEVNULL, check=False)
