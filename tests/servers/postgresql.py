"""A private PostgreSQL."""

import contextlib
import signal
import subprocess
from pathlib import Path

from tests.servers import machine
from tests.servers.base import ADMIN, MAX_CONNECTIONS, Server


class PostgreSQL(Server):
    name = "postgresql"
    variable = "CYBORG_QUOTA_TEST_POSTGRESQL"
    users = ("postgres", "nobody")
    stop_signal = signal.SIGINT  # "fast": ends the sessions, writes a checkpoint
    death_signal = "QUIT"  # "immediate": kills its children and removes its shared memory

    @property
    def url(self) -> str:
        return f"postgresql+psycopg2://{ADMIN}:{self.password}@127.0.0.1:{self.port}/postgres"

    def _initialization(self, data: Path) -> list[str]:
        password_file = self._private_file("password", self.password)
        return [
            machine.find("initdb"),
            f"--pgdata={data}",
            f"--username={ADMIN}",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
        ]

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
