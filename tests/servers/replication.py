"""A primary and a replica: PostgreSQL with a streaming standby, MariaDB with semi-synchronous replication."""

from __future__ import annotations

import abc
from pathlib import Path

from tests.servers import machine
from tests.servers.base import ADMIN, Server, Startable, session
from tests.servers.mariadb import MariaDB
from tests.servers.postgresql import PostgreSQL

CATCH_UP_TIMEOUT_SECONDS = 30.0


class Pair(Startable):
    """A primary and one replica, which answers queries and refuses changes.

    :param synchronous: whether a COMMIT is answered only after the replica has received it.
    """

    primary: Server
    replica: Server

    def __init__(self, *, synchronous: bool = True) -> None:
        self.synchronous = synchronous
        self.primary = self._make_primary()
        self._made = [self.primary]

    def start(self) -> None:
        self.primary.start()
        self.add_replica()

    def close(self) -> None:
        for server in reversed(self._made):
            server.close()

    def add_replica(self) -> None:
        """Make a new replica of the present primary, from scratch."""
        self.replica = self._make_replica()
        self._made.append(self.replica)
        self.replica.start()
        self._connect_replica()

    @abc.abstractmethod
    def _make_primary(self) -> Server:
        """Return a server that is not started yet."""

    @abc.abstractmethod
    def _make_replica(self) -> Server:
        """Return one for the present primary, with its password."""

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """The URL that an operator configures so that clients follow a promotion; for MariaDB, that of the primary."""

    @abc.abstractmethod
    def wait_caught_up(self) -> None:
        """Wait until the replica shows all that the primary has answered so far."""

    @abc.abstractmethod
    def _connect_replica(self) -> None:
        """Wait until the replica follows the primary; from then on, COMMIT waits for it if ``synchronous``."""

    @abc.abstractmethod
    def promote(self) -> None:
        """Make the replica the primary, as an operator does when the primary is lost. ``primary`` then names it."""

    @abc.abstractmethod
    def demote(self) -> None:
        """Make the running primary refuse changes, as before a planned change of roles. Its sessions stay open."""


class PostgreSQLStandby(PostgreSQL):
    """A hot standby, made from ``primary`` by pg_basebackup."""

    def __init__(self, primary: PostgreSQL) -> None:
        super().__init__(settings=primary.settings)
        self.password = primary.password
        self._primary = primary

    def _initialization(self, data: Path) -> list[str]:
        assert self.directory is not None
        self._private_file("pgpass", f"127.0.0.1:*:*:{ADMIN}:{self.password}\n")
        return [
            machine.find("pg_basebackup"),
            "--host=127.0.0.1",
            f"--port={self._primary.port}",
            f"--username={ADMIN}",
            f"--pgdata={data}",
            "--write-recovery-conf",
            "--checkpoint=fast",
            "--no-sync",
            "--no-password",
        ]

    def _environment(self) -> dict[str, str]:
        return {"PGPASSFILE": str(self.directory / "pgpass")} if self.directory is not None else {}


class PostgreSQLPair(Pair):
    primary: PostgreSQL

    def _make_primary(self) -> PostgreSQL:
        return PostgreSQL()

    def _make_replica(self) -> PostgreSQL:
        return PostgreSQLStandby(self.primary)

    @property
    def url(self) -> str:
        """Both hosts; libpq connects to the one that accepts changes."""
        hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in (self.primary, self.replica))
        return (
            f"postgresql+psycopg2://{ADMIN}:{self.primary.password}@/postgres?{hosts}&target_session_attrs=read-write"
        )

    def _connect_replica(self) -> None:
        with session(self.primary.url) as connection:
            if self.synchronous:
                connection.exec_driver_sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
                connection.exec_driver_sql("SELECT pg_reload_conf()")
            wanted = "sync" if self.synchronous else "async"

            def follows() -> bool:
                found = connection.exec_driver_sql("SELECT state, sync_state FROM pg_stat_replication").all()
                return [tuple(row) for row in found] == [("streaming", wanted)]

            machine.wait_until(follows, CATCH_UP_TIMEOUT_SECONDS)
            if not follows():
                raise machine.ServerError("postgresql: the standby does not follow the primary")

    def wait_caught_up(self) -> None:
        with session(self.primary.url) as connection:
            position = connection.exec_driver_sql("SELECT pg_current_wal_lsn()").scalar()
        with session(self.replica.url) as connection:
            shows = f"SELECT pg_last_wal_replay_lsn() >= '{position}'"
            machine.wait_until(lambda: connection.exec_driver_sql(shows).scalar() is True, CATCH_UP_TIMEOUT_SECONDS)

    def promote(self) -> None:
        with session(self.replica.url) as connection:
            assert connection.exec_driver_sql("SELECT pg_promote(true, 30)").scalar() is True
        self.primary = self.replica

    def demote(self) -> None:
        with session(self.primary.url) as connection:
            connection.exec_driver_sql("ALTER SYSTEM SET default_transaction_read_only = on")
            connection.exec_driver_sql("SELECT pg_reload_conf()")


_SEMI_SYNC = {
    "rpl_semi_sync_slave_enabled": "ON",
    "rpl_semi_sync_master_wait_point": "AFTER_SYNC",
    # By default the primary continues without the replica after 10 s, and what it answers then can be lost.
    "rpl_semi_sync_master_timeout": str(2**31),  # milliseconds: never
}


class MariaDBPair(Pair):
    def _make(self, number: int, **settings: str) -> MariaDB:
        settings |= {"server_id": str(number), "log_bin": "binlog", "log_slave_updates": "ON", "binlog_format": "ROW"}
        return MariaDB(settings=settings | (_SEMI_SYNC if self.synchronous else {}))

    def _make_primary(self) -> MariaDB:
        return self._make(1)

    def _make_replica(self) -> MariaDB:
        made = self._make(1 + len(self._made), read_only="ON")
        made.password = self.primary.password
        return made

    @property
    def url(self) -> str:
        return self.primary.url

    def start(self) -> None:
        self.primary.start()
        with session(self.primary.url) as connection:
            connection.exec_driver_sql("RESET MASTER")
        self.add_replica()

    def _connect_replica(self) -> None:
        with session(self.replica.url) as connection:
            # Its log also contains what its own first start has written, as that of the primary did.
            connection.exec_driver_sql("RESET MASTER")
            connection.exec_driver_sql("SET GLOBAL gtid_slave_pos = ''")
            connection.exec_driver_sql(
                f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {self.primary.port},"
                f" MASTER_USER = '{ADMIN}', MASTER_PASSWORD = '{self.primary.password}',"
                " MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1"
            )
            connection.exec_driver_sql("START SLAVE")
        with session(self.primary.url) as connection:
            if self.synchronous:
                # (From its start on, the statements of its init file would wait for a replica.)
                connection.exec_driver_sql("SET GLOBAL rpl_semi_sync_master_enabled = ON")
                connection.exec_driver_sql("SET GLOBAL rpl_semi_sync_master_wait_no_slave = ON")
            variable = "Rpl_semi_sync_master_clients" if self.synchronous else "Slaves_connected"

            def follows() -> bool:
                found = connection.exec_driver_sql(f"SHOW GLOBAL STATUS LIKE '{variable}'").first()
                return found is not None and int(found[1]) > 0

            machine.wait_until(follows, CATCH_UP_TIMEOUT_SECONDS)
            if not follows():
                raise machine.ServerError("mariadb: the replica does not follow the primary")
        self.wait_caught_up()

    def wait_caught_up(self) -> None:
        with session(self.primary.url) as connection:
            position = connection.exec_driver_sql("SELECT @@gtid_binlog_pos").scalar()
        with session(self.replica.url) as connection:
            assert connection.exec_driver_sql(f"SELECT MASTER_GTID_WAIT('{position}', 30)").scalar() == 0

    def promote(self) -> None:
        with session(self.replica.url) as connection:
            connection.exec_driver_sql("STOP SLAVE IO_THREAD")
            status = connection.exec_driver_sql("SHOW SLAVE STATUS").mappings().one()
            # Changes that it has received and not applied yet were answered by the old primary.
            if position := status["Gtid_IO_Pos"]:
                assert connection.exec_driver_sql(f"SELECT MASTER_GTID_WAIT('{position}', 30)").scalar() == 0
            connection.exec_driver_sql("STOP SLAVE")
            connection.exec_driver_sql("RESET SLAVE ALL")
            connection.exec_driver_sql("SET GLOBAL read_only = OFF")
        self.primary = self.replica

    def demote(self) -> None:
        with session(self.primary.url) as connection:
            connection.exec_driver_sql("SET GLOBAL read_only = ON")


PAIRS: dict[str, type[Pair]] = {"mariadb": MariaDBPair, "postgresql": PostgreSQLPair}
