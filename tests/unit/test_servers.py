"""The private servers: started, killed, restarted and closed, with the real programs."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import fixtures
import sqlalchemy
import testscenarios
import testtools

from tests import needs, servers
from tests.servers import command, machine

ROOT = Path(__file__).parents[2]
VARIABLES = [kind.variable for kind in servers.KINDS]
PROGRAMS = {"mariadb": "mariadbd", "postgresql": "postgres"}
CLEARED = ["CI", "CYBORG_QUOTA_REQUIRE_SERVERS", *VARIABLES]


class TestServer(testscenarios.WithScenarios, testtools.TestCase):
    scenarios = [(kind.name, {"kind": kind}) for kind in servers.KINDS]

    def make(self) -> servers.Server:
        server = self.kind()
        needs.start(self, server)
        return server

    def execute(self, server: servers.Server, statement: str) -> list[tuple]:
        engine = sqlalchemy.create_engine(server.url)
        try:
            with engine.begin() as connection:
                result = connection.execute(sqlalchemy.text(statement))
                return [tuple(row) for row in result] if result.returns_rows else []
        finally:
            engine.dispose()

    def need_program(self) -> None:
        """Skip or fail the test if there is no such server."""
        try:
            machine.find(PROGRAMS[self.kind.name])
        except machine.ServerError as error:
            needs.missing(self, str(error))

    def test_from_its_start_to_its_end(self):
        """One server, because each start takes long."""
        server = self.make()
        self.check_data_outlives_a_kill_and_a_stop(server)
        self.check_a_forked_child_does_not_stop_it(server)
        self.check_close_leaves_nothing(server)

    def check_data_outlives_a_kill_and_a_stop(self, server: servers.Server) -> None:
        url, first_pid = server.url, server.pid
        self.execute(server, "CREATE TABLE kept (value INT)")
        for value, end in enumerate([server.kill, server.stop]):
            self.execute(server, f"INSERT INTO kept VALUES ({value})")
            end()
            self.assertFalse(server.running)
            self.assertRaises(sqlalchemy.exc.OperationalError, self.execute, server, "SELECT 1")
            server.start()
        self.assertFalse(machine.alive(first_pid))
        self.assertEqual(url, server.url)
        self.assertEqual([(0,), (1,)], self.execute(server, "SELECT value FROM kept ORDER BY 1"))

    def check_a_forked_child_does_not_stop_it(self, server: servers.Server) -> None:
        child = os.fork()
        if child == 0:
            try:
                server.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        self.assertEqual([(1,)], self.execute(server, "SELECT 1"))

    def check_close_leaves_nothing(self, server: servers.Server) -> None:
        directory, pid = server.directory, server.pid
        children = machine.descendants(pid)
        server.close()
        self.assertFalse(directory.exists())
        self.assertEqual([], [pid for pid in [pid, *children] if machine.alive(pid)])

    def test_dies_with_its_killed_owner_and_is_removed(self):
        self.need_program()
        code = (
            "import sys, time; from tests import servers;"
            "server = servers.KINDS[int(sys.argv[1])](); server.start();"
            "print(server.pid, server.directory, flush=True); time.sleep(60)"
        )
        owner = subprocess.Popen(
            [sys.executable, "-c", code, str(servers.KINDS.index(self.kind))],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        with owner:
            pid, directory = owner.stdout.readline().split()
            self.assertTrue(machine.alive(int(pid)))
            owner.kill()
        machine.wait_until(lambda: not machine.alive(int(pid)), 60)
        self.assertFalse(machine.alive(int(pid)))
        # The next owner that starts a server removes what dead owners left.
        self.make().close()
        self.assertFalse(Path(directory).exists())

    def test_a_bad_setting_is_one_line_with_the_log(self):
        self.need_program()
        server = self.kind(settings={"no_such_setting": "1"})
        self.addCleanup(server.close)
        error = self.assertRaises(servers.ServerError, server.start)
        self.assertNotIn("\n", str(error))
        self.assertIn("no_such_setting", str(error))
        log = Path(str(error).rpartition("(log: ")[2].rstrip(")"))
        self.addCleanup(log.unlink)
        self.assertIn("no_such_setting", log.read_text())


class TestRun(testtools.TestCase):
    def run_module(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess:
        kept = {name: value for name, value in os.environ.items() if name not in CLEARED}
        return subprocess.run(
            [sys.executable, "-m", "tests.servers", "run", *arguments],
            cwd=ROOT,
            env={**kept, **environ},
            capture_output=True,
            text=True,
            check=False,
        )

    def test_exit_status_is_the_commands(self):
        given = {kind.variable: "given" for kind in servers.KINDS}
        self.assertEqual(7, self.run_module("--", "sh", "-c", "exit 7", **given).returncode)
        self.assertEqual(143, self.run_module("--", "sh", "-c", "kill $$", **given).returncode)
        self.assertEqual(127, self.run_module("--", "no-such-command", **given).returncode)

    def test_a_given_url_is_used_unchanged(self):
        given = {kind.variable: f"given-{kind.name}" for kind in servers.KINDS}
        done = self.run_module("--", "env", **given)
        for name, value in given.items():
            self.assertIn(f"{name}={value}\n", done.stdout)

    def test_sigterm_stops_command_and_servers(self):
        sleeper = ["sh", "-c", "echo $$; exec sleep 60"]
        runner = [sys.executable, "-m", "tests.servers", "run", "--", *sleeper]
        with subprocess.Popen(runner, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            pid = int(process.stdout.readline())
            pids = [pid, *machine.descendants(process.pid)]
            process.send_signal(signal.SIGTERM)
        self.assertEqual(143, process.returncode)
        self.assertEqual([], [pid for pid in pids if machine.alive(pid)])

    def test_sigterm_while_the_command_is_started(self):
        """The signal is sent by the command, as soon as it runs."""
        given = {kind.variable: "given" for kind in servers.KINDS}
        for _ in range(3):
            done = self.run_module("--", "sh", "-c", "echo $$; kill $PPID; exec sleep 60", **given)
            self.assertEqual(143, done.returncode)
            self.assertFalse(machine.alive(int(done.stdout)))


class TestMissing(testtools.TestCase):
    """A machine without the servers, simulated by an empty search path."""

    def setUp(self):
        super().setUp()
        for patch in (
            mock.patch.object(machine, "search_path", return_value="/nonexistent"),
            mock.patch.dict(os.environ),
            mock.patch.object(command, "_run_command", return_value=0),
        ):
            patch.start()
            self.addCleanup(patch.stop)
        for name in CLEARED:
            os.environ.pop(name, None)
        self.stderr = self.useFixture(fixtures.StringStream("said")).stream
        self.useFixture(fixtures.MonkeyPatch("sys.stderr", self.stderr))

    def test_continues_without(self):
        self.assertEqual(0, command.run(["true"]))
        self.assertNotIn(servers.MariaDB.variable, command._run_command.call_args.args[1])

    def test_is_a_failure_where_they_are_required(self):
        for name, value in (("CI", "true"), ("CYBORG_QUOTA_REQUIRE_SERVERS", "1")):
            with mock.patch.dict(os.environ, {name: value}):
                self.assertEqual(3, command.run(["true"]))
        command._run_command.assert_not_called()

    def test_names_the_program(self):
        error = self.assertRaises(servers.ServerError, servers.MariaDB().start)
        self.assertIn("mariadb-install-db is not installed", str(error))


class TestPort(testtools.TestCase):
    def test_is_outside_the_range_of_clients(self):
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        if lowest <= machine.PORTS.start:
            needs.missing(self, "this machine gives its clients every port")
        self.assertLess(machine.free_port(), lowest)

    def test_is_given_once(self):
        """Even while no process is bound to it."""
        port = machine.free_port()
        with mock.patch.object(machine, "PORTS", range(port, port + 1)):
            self.assertRaises(servers.ServerError, machine.free_port)


class TestDirectory(testtools.TestCase):
    def test_a_directory_in_use_is_not_removed(self):
        directory, lock = machine.new_directory(durable=True)
        self.addCleanup(machine.remove_if_abandoned, directory)
        with lock:
            machine.remove_if_abandoned(directory)
            self.assertTrue(directory.exists())
