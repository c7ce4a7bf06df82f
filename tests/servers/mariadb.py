"""A private MariaDB."""

import os
import pwd
import signal
from pathlib import Path

from tests.servers import machine, templates
from tests.servers.base import ADMIN, MAX_CONNECTIONS, Server

LOG_FILE_SIZE = "32M"
"""A third of the default: each server has a copy of the log."""


class MariaDB(Server):
    name = "mariadb"
    variable = "CYBORG_QUOTA_TEST_MARIADB"
    users = ("mysql", "nobody")
    stop_signal = signal.SIGTERM
    death_signal = "KILL"

    @property
    def url(self) -> str:
        # Without this, PyMySQL reads the machine's certificates for each connection (20 ms of CPU), although TLS is not
        # used.
        return f"mysql+pymysql://{ADMIN}:{self.password}@127.0.0.1:{self.port}/mysql?ssl_disabled=1"

    def _initialization(self, data: Path) -> list[str]:
        user = pwd.getpwuid(data.stat().st_uid).pw_name
        temporary = data.parent / "tmp"
        temporary.mkdir(mode=0o700)
        os.chown(temporary, data.stat().st_uid, data.stat().st_gid)
        # root can log in only through the socket, as the user who runs the server; the tests use ADMIN, whom the server
        # creates before it answers any client.
        self._private_file(
            "init.sql",
            f"CREATE USER IF NOT EXISTS '{ADMIN}'@'127.0.0.1' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO '{ADMIN}'@'127.0.0.1' WITH GRANT OPTION;\n",
        )
        make = [
            machine.find("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={data}",
            "--auth-root-authentication-method=socket",
            f"--auth-root-socket-user={user}",
            "--skip-name-resolve",
            "--skip-test-db",
            f"--innodb-log-file-size={LOG_FILE_SIZE}",
        ]
        return templates.command(self.name, make, data)

    def _environment(self) -> dict[str, str]:
        # Also the directory in which its data is made: a server that starts removes all temporary tables there,
        # including those of another server that starts at the same time, which can then crash.
        return {"TMPDIR": str(self.directory / "tmp")} if self.directory is not None else {}

    def _command(self, data: Path) -> list[str]:
        settings = {
            "bind_address": "127.0.0.1",
            "port": str(self.port),
            "socket": str(data / "socket"),
            "pid_file": str(data / "pid"),
            "tmpdir": str(data.parent / "tmp"),
            "init_file": str(data.parent / "init.sql"),
            "max_connections": str(MAX_CONNECTIONS),
            "character_set_server": "utf8mb4",
        }
        if not self.durable:
            # Log writes go to the operating system, not to the disk. 0 was not faster when measured, and loses answered
            # commits when the server is killed; without doublewrite, pages can be torn.
            settings["innodb_flush_log_at_trx_commit"] = "2"
            settings["innodb_log_file_size"] = LOG_FILE_SIZE
        settings |= self.settings
        options = [f"--{name}={value}" for name, value in settings.items()]
        return [
            machine.find("mariadbd"),
            "--no-defaults",
            f"--datadir={data}",
            "--skip-name-resolve",
            *options,
        ]
