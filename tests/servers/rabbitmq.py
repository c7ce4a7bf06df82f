"""A private RabbitMQ."""

import base64
import contextlib
import hashlib
import json
import shutil
import signal
import socket
from pathlib import Path
from typing import Any

from tests.servers import machine
from tests.servers.base import ADMIN, Server

# The program itself: Debian's wrapper on the search path changes to another user first.
PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
GREETING = b"AMQP\x00\x00\x09\x01"
METHOD_FRAME = b"\x01"
CONFIG = """\
listeners.tcp.default = 127.0.0.1:{port}
load_definitions = {definitions}
log.file = false
log.console = true
log.console.level = warning
"""


VHOSTS = ("/", "second", "third")
"""The virtual hosts of each server, so that several clouds can share it."""


class RabbitMQ(Server):
    """Without plugins, management or epmd: the node serves its own distribution port, on loopback only."""

    name = "rabbitmq"
    users = ("rabbitmq", "nobody")
    stop_signal = signal.SIGTERM
    death_signal = "KILL"
    _distribution_port = 0

    @property
    def url(self) -> str:
        """The URL for oslo.messaging, as a transport_url."""
        return self.url_of(VHOSTS[0])

    def url_of(self, vhost: str) -> str:
        """Return the URL of a virtual host."""
        return f"rabbit://{ADMIN}:{self.password}@127.0.0.1:{self.port}/{vhost}"

    def _definitions(self) -> str:
        salt = b"salt"
        digest = hashlib.sha256(salt + self.password.encode()).digest()
        user = {"name": ADMIN, "password_hash": base64.b64encode(salt + digest).decode(), "tags": "administrator"}
        rights = {"user": ADMIN, "configure": ".*", "write": ".*", "read": ".*"}
        return json.dumps(
            {
                "users": [user],
                "vhosts": [{"name": name} for name in VHOSTS],
                "permissions": [{**rights, "vhost": name} for name in VHOSTS],
            }
        )

    def _initialization(self, data: Path) -> list[str]:
        if not PROGRAM.exists() or shutil.which("erl", path=machine.search_path()) is None:
            raise machine.ServerError(f"{PROGRAM} is not installed (bindep.txt names the packages)")
        definitions = self._private_file("definitions.json", self._definitions())
        self._private_file("rabbitmq.conf", CONFIG.format(port=self.port, definitions=definitions))
        self._private_file("enabled_plugins", "[].\n")
        self._private_file("rabbitmq-env.conf", "")
        self._distribution_port = machine.free_port()
        return []

    def _command(self, data: Path) -> list[str]:
        return [str(PROGRAM)]

    def _environment(self) -> dict[str, str]:
        assert self.directory is not None, "not prepared"
        data = self.directory / "data"
        node = f"quota{self.port}@localhost"
        return {
            "HOME": str(data),  # for the cookie
            "detached": "1",  # the shell is replaced by the server, so the server has no extra parent
            "ERL_CRASH_DUMP_BYTES": "0",
            "RABBITMQ_NODENAME": node,
            "RABBITMQ_BASE": str(data),
            "RABBITMQ_MNESIA_BASE": str(data / "mnesia"),
            "RABBITMQ_LOG_BASE": str(data),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(data / "pid"),
            "RABBITMQ_SCHEMA_DIR": str(data / "schema"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(data / "config"),
            "RABBITMQ_FEATURE_FLAGS_FILE": str(data / "feature_flags"),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.directory / "none.config"),
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "rabbitmq-env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "enabled_plugins"),
            # A node whose name is known from the start does not ask epmd for others. It starts in 5 s with one thread,
            # in 6 with two. It does not spin while it waits for work.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-sname {node} -start_epmd false"
            f" -erl_epmd_port {self._distribution_port} -kernel inet_dist_use_interface {{127,0,0,1}} +S 1:1"
            " +sbwt none +sbwtdcpu none +sbwtdio none",
        }

    def _popen_options(self) -> dict[str, Any]:
        assert self.directory is not None, "not prepared"
        return {**super()._popen_options(), "cwd": self.directory / "data"}  # a directory that it may read

    def _answers(self) -> bool:
        """Return whether it answers the greeting of AMQP 0-9-1 with its own."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5.0) as probe:
            probe.sendall(GREETING)
            return probe.recv(1) == METHOD_FRAME
        return False
