"""A private server of any kind: made, started, stopped, killed and removed."""

from __future__ import annotations

import abc
import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar, TypeVar

import sqlalchemy

from tests.servers import machine

ADMIN = "quota_admin"
MAX_CONNECTIONS = 300
START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 30.0
_ERROR_WORDS = ("ERROR", "FATAL", "error:")

T = TypeVar("T", bound="Startable")


@contextlib.contextmanager
def session(url: str) -> Iterator[sqlalchemy.Connection]:
    """A connection in autocommit mode, which is closed after the block."""
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sqlalchemy.pool.NullPool)
    with engine.connect() as connection:
        yield connection


class Startable(abc.ABC):
    """A context manager that starts it, and closes it at the end."""

    @abc.abstractmethod
    def start(self) -> None:
        """:raises ServerError: it cannot be started."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop it and remove its files, whatever its state."""

    def __enter__(self: T) -> T:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Server(Startable):
    """One private server. Its data exists from the first start until close().

    Start it from a thread that lives as long: the kernel ends the server with that thread.

    :param durable: keep the server's default durability, with its data on the disk of the temporary directory, for
        measurements. Otherwise an answered commit survives kill(), but not a crash of the machine.
    :param settings: more settings of the server, by their names there.
    """

    name: ClassVar[str]
    variable: ClassVar[str]
    """The environment variable with the URL of a running one, where tests may use that."""
    users: ClassVar[tuple[str, ...]]
    stop_signal: ClassVar[signal.Signals]
    death_signal: ClassVar[str]

    def __init__(self, *, durable: bool = False, settings: Mapping[str, str] | None = None) -> None:
        self.durable = durable
        self.settings = dict(settings or {})
        self.password = secrets.token_hex(16)
        self.port = 0
        self.directory: Path | None = None
        self._lock: IO[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner_pid = os.getpid()

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """The SQLAlchemy URL of a database that always exists, for a user with all privileges."""

    @abc.abstractmethod
    def _initialization(self, data: Path) -> list[str]:
        """Return the command that makes an empty cluster in this directory; [] if the first start makes it."""

    @abc.abstractmethod
    def _command(self, data: Path) -> list[str]:
        """Return the command that runs the server in the foreground."""

    def _environment(self) -> dict[str, str]:
        """Return its environment variables, besides a search path, a locale and a home directory."""
        return {}

    @property
    def log(self) -> Path:
        assert self.directory is not None, "not prepared"
        return self.directory / f"{self.name}.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        """Start the server, and wait until it answers; after stop() or kill(), on the same port and data.

        :raises ServerError: it cannot be found, made or started.
        """
        self.prepare()
        self.launch()
        self.wait()

    def prepare(self) -> None:
        """Make the data directory, once."""
        if self.directory is not None:
            return
        self._owner_pid = os.getpid()
        self.directory, self._lock = machine.new_directory(self.durable)
        self.port = machine.free_port()
        data = self.directory / "data"
        data.mkdir(mode=0o700)
        if user := self._user():
            os.chown(data, user.pw_uid, user.pw_gid)
        try:
            if command := self._initialization(data):
                self._initialize(command)
        except machine.ServerError:
            self.close()
            raise

    def _initialize(self, command: list[str]) -> None:
        self._spawn(command)
        assert self._process is not None
        try:
            status = self._process.wait(START_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._failure(f"its data was not made in {START_TIMEOUT_SECONDS:.0f} seconds") from None
        if status:
            raise self._failure(f"its data could not be made (exit status {status})")
        self._process = None

    def launch(self) -> None:
        """Start the process, without waiting for it to answer."""
        assert self.directory is not None, "not prepared"
        assert not self.running, f"{self.name} already runs"
        self._owner_pid = os.getpid()
        self._spawn(self._command(self.directory / "data"))

    def wait(self) -> None:
        """Wait until the server answers.

        :raises ServerError: it ended, or did not answer in time.
        """
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while self.running and not self._answers():
            if time.monotonic() > deadline:
                raise self._failure(f"no answer in {START_TIMEOUT_SECONDS:.0f} seconds")
            time.sleep(machine.POLL_SECONDS)
        if not self.running:
            raise self._failure("it ended while starting")

    def _answers(self) -> bool:
        """Return whether it answers a query."""
        with contextlib.suppress(sqlalchemy.exc.DBAPIError), session(self.url) as connection:
            return connection.exec_driver_sql("SELECT 1").scalar() == 1
        return False

    def create_database(self, name: str) -> str:
        """Make an empty database, in the place of an existing one; returns its URL."""
        with session(self.url) as connection:
            connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {name}")
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        return self.url_of(name)

    def url_of(self, database: str) -> str:
        """Return the URL of a database."""
        return sqlalchemy.make_url(self.url).set(database=database).render_as_string(hide_password=False)

    def stop(self) -> None:
        """Shut down properly; the data stays. Does nothing if it does not run."""
        if self._process is None or os.getpid() != self._owner_pid:
            return
        self._process.send_signal(self.stop_signal)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill the server and its children, like a crash; the data stays."""
        if self._process is None or os.getpid() != self._owner_pid:
            return
        children = machine.descendants(self._process.pid)
        self._process.kill()
        self._process.wait()
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # A restart is refused while a child of the old server still holds its memory.
        machine.wait_until(lambda: not any(map(machine.alive, children)), STOP_TIMEOUT_SECONDS)
        self._process = None

    def pause(self) -> None:
        """Suspend the server and its children, as if the machine were frozen; see resume()."""
        pids = [self.pid, *machine.descendants(self.pid)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        # On a busy machine, a thread may continue for a while, and answer.
        machine.wait_until(lambda: all(map(machine.stopped, pids)), STOP_TIMEOUT_SECONDS)

    def resume(self) -> None:
        """Resume them. (A child that has ended since it was listed needs nothing.)"""
        for pid in [self.pid, *machine.descendants(self.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        """Kill the server and remove its data. The object can be started again, on new data."""
        if os.getpid() != self._owner_pid:
            return
        self.kill()
        if self.directory is not None:
            self._remove_traces(self.directory / "data")
            shutil.rmtree(self.directory, ignore_errors=True)
        self.directory = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _remove_traces(self, data: Path) -> None:
        """Remove what a killed server has left outside its data; most kinds leave nothing."""

    def _user(self) -> pwd.struct_passwd | None:
        """Return the user who runs the server: another one if we are root, because PostgreSQL refuses root."""
        if os.geteuid() != 0:
            return None
        for name in self.users:
            with contextlib.suppress(KeyError):
                return pwd.getpwnam(name)
        raise machine.ServerError(f"{self.name}: none of the users {', '.join(self.users)} exists")

    def _popen_options(self) -> dict[str, Any]:
        # Its own session, so that Ctrl-C in the terminal reaches us and not the server.
        options: dict[str, Any] = {
            "cwd": self.directory,
            "env": {"PATH": machine.search_path(), "LC_ALL": "C", "HOME": str(self.directory), **self._environment()},
            "start_new_session": True,
        }
        if user := self._user():
            options.update(user=user.pw_uid, group=user.pw_gid, extra_groups=[])
        return options

    def _private_file(self, name: str, text: str) -> Path:
        """A file that only the server's user can read."""
        assert self.directory is not None
        path = self.directory / name
        path.touch(mode=0o600)
        path.write_text(text)
        if user := self._user():
            os.chown(path, user.pw_uid, user.pw_gid)
        return path

    def _spawn(self, command: list[str]) -> None:
        command = machine.ends_with_parent(command, self.death_signal)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._popen_options()
            )

    def _failure(self, what: str) -> machine.ServerError:
        """Return an error with this message, the last line of the log, and the path of a copy of the log."""
        handle, kept = tempfile.mkstemp(prefix=f"cyborg-quota-{self.name}-", suffix=".log")
        os.close(handle)
        shutil.copyfile(self.log, kept)
        lines = self.log.read_text(errors="replace").strip().splitlines()
        marked = [line for line in lines if any(word in line for word in _ERROR_WORDS) and "Aborting" not in line]
        last = (marked or lines or ["(nothing logged)"])[-1].strip()
        return machine.ServerError(f"{self.name}: {what}: {last} (log: {kept})")
