# SPDX-License-Identifier: Apache-2.0
"""The installed program: exit statuses, help, configuration, signals and pipes."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pathlib
import re
import subprocess
import sys

import cyborg_quota
from cyborg_quota import QuotaEngine
from cyborg_quota.cli import main
from tests import forked
from tests.cli import base


class ShellTest(base.CliTestCase):
    def test_the_installed_program(self) -> None:
        """Its configuration may be in the environment; its exit status and its output are those of the command."""
        self.conf.write_text("")
        environment = {"OS_DATABASE__CONNECTION": self.url, "OS_LIMITS__DRIVER": "config", "OS_LIMITS__LIMITS": "gpu:0"}
        process = self.spawn("check", "gpu=1", "p", "-f", "value", "-c", "limit", env=environment)
        out, err = process.communicate(timeout=60)
        self.assertEqual((1, "0\n", ""), (process.returncode, out, err))

    def test_help_describes_every_command(self) -> None:
        self.assertEqual(f"cyborg-quota {cyborg_quota.__version__}\n", self.call("--version").out)
        self.conf.unlink()  # no configuration is needed
        ended = self.call("--help")
        self.assertEqual(0, ended.status)
        for name in ("help", "complete", *base.commands()):
            self.assertRegex(ended.out, rf"(?m)^  {name} +" + (r"\S" if name in ("help", "complete") else "[A-Z]"))
        for name in base.commands():
            text = self.call(*name.split(), "--help")
            self.assertEqual((0, ""), (text.status, text.err))
            self.assertRegex(text.out, r"(?m)^example:\n  .*cyborg-quota " + name)
        self.assertEqual(text.out, self.call("help", *name.split()).out)

    def test_no_command_and_an_unknown_one(self) -> None:
        unknown = (
            "inventory steal",
            "--bogus list --usage",
            "foo --help",
            "limit set --help",
            "inventory steal --help",
        )
        self.refused_each(2, dict.fromkeys((*unknown, "-x --help", "help steal"), "is no command"))
        self.refused_each(2, {"": "--help", "resreve": "reserve"})
        self.assertIn("pod binding delete", self.call("pod", "binding", "--help").out)

    def test_a_former_name_of_a_command(self) -> None:
        for former, name in main._FORMER.items():
            words, *_ = name.split(" --")
            self.assertIn(words, base.commands())
            self.assertIn(f" It is `{name}` now. ", self.refused(2, *former.split(), "--project", "p"))

    def test_a_wrong_value_is_explained(self) -> None:
        """Not with the name of a function, nor with a value of Python."""
        for argv, expected in (
            (["list", "--usage", "--limit", "0"], "'0': write an integer from 1 to 2147483647"),
            (["list", "--tree", "--depth", "x"], "'x': write an integer from 0 to 2147483647"),
            (
                ["history", "list", "--since", "99999999w"],
                "'99999999w': write a time such as 30d, 12h, 45m or 90s, at most 36500d",
            ),
            (["trace", "export", "--since", "99999d"], "'99999d': write a time such as 30d, 12h, 45m or 90s, at most"),
            (["set", "gpu=x", "p"], "'gpu=x': write RESOURCE=LIMIT, as in gpu=20"),
        ):
            self.assertIn(expected, self.misused(*argv))

    def test_an_option_is_not_abbreviated(self) -> None:
        self.assertIn("Unrecognized arguments: --usa", self.misused("show", "p", "--usa"))

    def test_misuse_of_every_command(self) -> None:
        """One line says what is wrong, without the usage, and names the help; the exit status is 2."""
        shell = main.Shell()
        tested = set()
        for name in base.commands():
            self.assertIn(f"`cyborg-quota {name} --help`", self.misused(*name.split(), "--no-such-option"))
            factory, _, _ = shell.command_manager.find_command(name.split())
            actions = factory(shell, None, cmd_name=name).get_parser(name)._actions
            options = [action for action in actions if action.option_strings]
            required = [f"{action.option_strings[-1]}=p" for action in options if action.required]
            for action in (*options, *[action for action in actions if not action.option_strings][:1]):
                key = (action.dest, action.type or tuple(action.choices or ()))
                if key in tested or not key[1]:
                    continue
                tested.add(key)
                bad = [f"{action.option_strings[-1]}=~bad~"] if action.option_strings else [*required, "~bad~"]
                line = self.misused(*name.split(), *bad)
                self.assertIn("'~bad~'", line)
                self.assertNotRegex(line, r"invalid \w+ value")
        self.assertGreater(len(tested), 20)

    def test_a_name_that_is_not_found(self) -> None:
        self.configure("[limits]\ndriver = database\n[quota]\nresources = gpu")
        self.refused_each(
            1,
            {
                "pod show p9": "List the pods: cyborg-quota pod list",
                "override delete 99-0": "List the overrides: cyborg-quota override list",
            },
        )

    def test_an_invalid_configuration(self) -> None:
        for text, named in (
            ("[quota]\npurge_age = many", "purge_age"),
            ("[limits]\ndriver = ghost", "[limits] driver = ghost"),
            ("[limits]\ndriver = config\nlimits = gpu:-2", "limits"),
            ("[limits]\ndriver = database\nroot_initial_limit = many", "root_initial_limit"),
        ):
            self.configure(text)
            self.refused_each(2, {"list --usage": named})
        self.configure(url="not a url")
        self.refused_each(2, {"list --usage": "[database] connection is not a valid"})
        self.conf.write_text("this is no configuration\n")
        self.refused_each(2, {"list --usage": "cyborg_quota.conf"})
        self.conf.unlink()
        self.refused_each(2, {"list --usage": "cyborg_quota.conf"})

    def test_an_unexpected_error_or_an_interrupt(self) -> None:
        audit = self.useFixture(base.fx.MockPatchObject(QuotaEngine, "audit", side_effect=KeyError("odd"))).mock
        self.refused_each(1, {"audit": "Internal error: KeyError: 'odd'."})
        ended = self.call("--debug", "audit")
        self.assertEqual((1, True), (ended.status, "Traceback" in ended.err))
        audit.side_effect = KeyboardInterrupt
        ended = self.call("audit")
        self.assertEqual((130, "", ""), (ended.status, ended.out, ended.err))

    def test_a_broken_pipe_prints_no_traceback(self) -> None:
        """In a process that the shell starts, and in forks of this one, which need no second to load the libraries."""
        self.prepare(*[f"reserve --project {'p' * 200} gpu=1"] * 3)
        reader, writer = os.pipe()
        os.close(reader)
        try:
            process = self.spawn("list", "--usage", stdout=writer)
            for argv in (["reservation", "list", "-f", "csv"], ["reservation", "list"]):
                command = functools.partial(main.main, ["--config-file", str(self.conf), *argv])
                self.assertEqual((141, "", ""), forked.run(command, stdout=writer))
        finally:
            os.close(writer)
        _, err = process.communicate(timeout=60)
        self.assertEqual((141, ""), (process.returncode, err))

    def test_output_that_cannot_be_written(self) -> None:
        with open("/dev/full", "wb") as full:
            command = functools.partial(
                main.main, ["--config-file", str(self.conf), "reservation", "list", "-f", "csv"]
            )
            ended = forked.run(command, stdout=full.fileno())
        self.assertEqual((1, 1), (ended.status, ended.err.count("\n")), ended.err)
        self.assertIn("No space left on device", ended.err)

    def test_closed_streams(self) -> None:
        """A charge that nobody reads about is no error; and no message is written into the data."""
        command = f"{base.installed(base.PROGRAM)} --config-file {self.conf}"
        subprocess.run(f"{command} reserve --project p gpu=1 >&-", shell=True, check=True)
        ended = subprocess.run(f"{command} commit nothing <&- 2>&-", shell=True, check=False, stdout=subprocess.PIPE)
        self.assertEqual((1, b""), (ended.returncode, ended.stdout))

    def test_a_file_that_is_no_database(self) -> None:
        self.configure(url=f"sqlite:///{self.write_file('notes.txt', 'no database')}")
        self.assertIn("file is not a database", self.refused(1, "db", "sync"))

    def test_names_beyond_the_terminal_s_encoding(self) -> None:
        out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        with contextlib.redirect_stdout(out):
            argv = ["reserve", "--project", "プロ", "gpu=1", "-f", "value", "-c", "project_id"]
            self.assertEqual(0, main.main(["--config-file", str(self.conf), *argv]))
        out.seek(0)
        self.assertEqual("\\u30d7\\u30ed\n", out.read())

    def test_a_file_on_stdout_has_the_encoding_of_a_file(self) -> None:
        """An import of it would set the limits of a project whose name has backslashes."""
        self.configure("[limits]\ndriver = database")
        self.assertEqual(0, self.call("set", "gpu=1", "プロ").status)
        self.call("limits", "export", name := str(self.directory / "limits.yaml"))
        out = io.TextIOWrapper(content := io.BytesIO(), encoding="ascii")
        with contextlib.redirect_stdout(out):
            self.assertEqual(0, main.main(["--config-file", str(self.conf), "limits", "export"]))
        self.assertEqual(pathlib.Path(name).read_bytes(), content.getvalue())

    def test_logging_goes_to_stderr_when_asked(self) -> None:
        self.assertEqual("", self.call("reserve", "--project", "p", "gpu=1").err)
        self.assertIn("reserved", self.call("-vv", "reserve", "--project", "p", "gpu=1").err)

    def test_no_more_is_loaded_than_needed(self) -> None:
        """--help loads no database, and a command on SQLite no driver of another one."""
        script = (
            "import sys; from cyborg_quota.cli.main import main; main(['list', '--help']);"
            "loaded = lambda *names: [name for name in names if name in sys.modules];"
            "print('help:', *loaded('sqlalchemy', 'alembic', 'tqdm', 'cotyledon', 'matplotlib', 'cmd2'));"
            f"status = main(['--config-file', {str(self.conf)!r}, 'list', '--usage']);"
            "print('command:', status, *loaded('tqdm', 'cotyledon', 'futurist', 'matplotlib', 'cmd2', 'pymysql'))"
        )
        out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        self.assertEqual(["help:", "command: 0"], re.findall(r"(?m)^(?:help|command):.*$", out))

    def test_the_number_of_commands(self) -> None:
        """Each is one that every later reader has to know: do without one, or raise the number on purpose."""
        self.assertLessEqual(len(base.commands()), 65)
