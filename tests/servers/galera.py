"""A private Galera cluster: MariaDB nodes on loopback that replicate every transaction to each other.

with Galera() as cluster:
    engines = [sqlalchemy.create_engine(node.url) for node in cluster.nodes]
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path

import sqlalchemy

from tests.servers import machine
from tests.servers.base import ADMIN, Startable, session
from tests.servers.mariadb import MariaDB

LIBRARIES = (
    "/usr/lib/galera/libgalera_smm.so",
    "/usr/lib64/galera-4/libgalera_smm.so",
    "/usr/lib64/galera/libgalera_smm.so",
)
JOIN_TIMEOUT_SECONDS = 60.0
REJOIN_TIMEOUT_SECONDS = 20.0


def missing() -> str | None:
    """Return the reason why no cluster can run here; None if one can."""
    if not any(Path(library).exists() for library in LIBRARIES):
        return "no Galera library (bindep.txt names the package)"
    for program in ("mariadbd", "wsrep_sst_rsync", "rsync"):
        if shutil.which(program, path=machine.search_path()) is None:
            return f"no {program} (bindep.txt names the packages)"
    return None


class Node(MariaDB):
    """One MariaDB node of a cluster.

    ``address`` is its address for the other nodes; ``host`` is set in a network namespace.
    """

    cluster: Galera

    def __init__(self, cluster: Galera, number: int, settings: Mapping[str, str]) -> None:
        super().__init__(settings=settings)
        self.cluster = cluster
        self.number = number
        self.password = cluster.password
        # Group communication, incremental and full state transfer.
        self.group_port, self.ist_port, self.sst_port = (machine.free_port() for _ in range(3))
        self._is_first = False

    def _initialization(self, data: Path) -> list[str]:
        """The first node makes its data; the others receive theirs when they join."""
        command = super()._initialization(data)
        return ["true"] if self.number else command

    def launch(self, *, is_first: bool = False) -> None:
        """Start it; the first node of a cluster founds it, the others join."""
        self._is_first = is_first
        super().launch()

    def _command(self, data: Path) -> list[str]:
        options = {
            "gmcast.listen_addr": f"tcp://127.0.0.1:{self.group_port}",
            "ist.recv_addr": f"127.0.0.1:{self.ist_port}",
            "base_host": "127.0.0.1",
            "gcache.size": "32M",
            "pc.recovery": "false",
            **self.cluster.provider_options,
        }
        library = next(library for library in LIBRARIES if Path(library).exists())
        others = ",".join(f"127.0.0.1:{node.group_port}" for node in self.cluster.nodes)
        wsrep = {
            "wsrep_on": "ON",
            "wsrep_provider": library,
            "wsrep_provider_options": ";".join(f"{name}={value}" for name, value in options.items()),
            "wsrep_cluster_name": "cyborg_quota_tests",
            "wsrep_cluster_address": "gcomm://" + ("" if self._is_first else others),
            "wsrep_node_name": f"node{self.number}",
            "wsrep_node_address": "127.0.0.1",
            "wsrep_sst_method": "rsync",
            "wsrep_sst_receive_address": f"127.0.0.1:{self.sst_port}",
            "binlog_format": "ROW",
            "innodb_autoinc_lock_mode": "2",
            "innodb_buffer_pool_size": "64M",
            "innodb_log_file_size": "32M",
        }
        return [*super()._command(data), *(f"--{name}={value}" for name, value in wsrep.items())]

    def is_synced(self) -> bool:
        """Return whether it belongs to the primary component, and has received all that the others have committed.

        Its view must be that of the others: a node that was suspended reports its old state for a while.
        """
        own_status = self._status()
        others = [node._status() for node in self.cluster.nodes if node is not self and node.running]
        views = {status["wsrep_cluster_conf_id"] for status in (own_status, *others) if status}
        is_ready = own_status.get("wsrep_ready") == "ON" and own_status.get("wsrep_local_state_comment") == "Synced"
        return is_ready and len(views) == 1

    def _status(self) -> dict[str, str]:
        """Return its status variables; empty if it does not answer."""
        with contextlib.suppress(sqlalchemy.exc.DBAPIError), session(self.url) as connection:
            return dict(connection.exec_driver_sql("SHOW STATUS LIKE 'wsrep_%%'").all())
        return {}

    def wait_synced(self) -> None:
        """:raises ServerError: it did not join in time."""
        if not self._joins_in(JOIN_TIMEOUT_SECONDS):
            raise self._failure(f"node{self.number} did not join the cluster, and runs: {self.running}")

    def _joins_in(self, seconds: float) -> bool:
        machine.wait_until(lambda: self.is_synced() or not self.running, seconds)
        return self.is_synced()

    def wait_rejoined(self) -> None:
        """Wait until it has joined the others again; restart it if it does not, as an operator would.

        Galera ends a node that finds itself inconsistent, or that cannot receive what it has missed while it runs.
        """
        if not self._joins_in(REJOIN_TIMEOUT_SECONDS):
            self.kill()
            self.rejoin()

    def isolate(self, is_isolated: bool) -> None:
        """Isolate it from the other nodes, or end that. Clients still reach it; it is a minority of one."""
        import pymysql

        # With the bare driver: a node without a majority answers SET, but no ROLLBACK, with which SQLAlchemy's first
        # connection ends.
        connection = pymysql.connect(
            host="127.0.0.1", port=self.port, user=ADMIN, password=self.password, autocommit=True, read_timeout=30
        )
        with connection, connection.cursor() as cursor:
            cursor.execute(f"SET GLOBAL wsrep_provider_options = 'gmcast.isolate={int(is_isolated)}'")

    def rejoin(self) -> None:
        """Start it again after kill(): it joins, and receives what it has missed."""
        self.launch()
        self.wait()
        self.wait_synced()


class Galera(Startable):
    """A cluster of three nodes, or another number. Any of them can be killed, suspended and restarted."""

    def __init__(self, count: int = 3, *, provider_options: Mapping[str, str] | None = None, **settings: str) -> None:
        self.password = "galera"
        self.provider_options = dict(provider_options or {})
        self.nodes = [Node(self, number, settings) for number in range(count)]

    def start(self) -> None:
        """:raises ServerError: it cannot be started."""
        reason = missing()
        if reason is not None:
            raise machine.ServerError(f"galera: {reason}")
        for node in self.nodes:
            node.prepare()
        for node in self.nodes:
            node.launch(is_first=node is self.nodes[0])
            node.wait()
            node.wait_synced()

    def close(self) -> None:
        for node in reversed(self.nodes):
            node.close()
