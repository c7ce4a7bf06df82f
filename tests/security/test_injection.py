# SPDX-License-Identifier: Apache-2.0
"""Text from a user stays text: it is never SQL, a second line of a log, or a control sequence of a terminal."""

from __future__ import annotations

import itertools
import json
import logging
import pathlib
import unicodedata
from typing import Any

import fixtures as fx
import sqlalchemy as sa
import testscenarios
import yaml

from cyborg_quota import exceptions
from cyborg_quota.cli import notifications
from cyborg_quota.cli.errors import printable
from cyborg_quota.types import Notice
from tests import base, hooks
from tests.cli import base as cli
from tests.functional import test_limits

load_tests = testscenarios.load_tests_apply_scenarios

SQL = (
    "'; DROP TABLE reservations; --", '"; DROP TABLE reservations; --', "' OR '1'='1", "x' UNION SELECT NULL --",
    "\\'; DELETE FROM projects; --", "%s", "%(b_id)s", "%d%n%x", ":b_id", "?", "$1", "{0}", "{x.__class__}", "${x}",
    "`projects`", "/* */", "0x27", "NULL", "CHAR(39)", "%00", "\u02bc OR 1=1", "\uff07 OR 1=1", "-1", "--", "@@version",
    "=cmd|' /C calc'!A0", "<script>", "&amp;", "!!python/object:os.system", "*alias", "&anchor", "- x", "a: b", "~",
)  # fmt: skip
CONTROLS = (
    "a\nCRITICAL forged", "a\r\nCRITICAL forged", "a\rforged", "a\x1b[2Jb", "a\x1b]0;title\x07b", "a\x9b31mb", "a\0b",
    "a\tb",
    "a\bb", "a\x7fb", "a\u2028b", "a\u2029b", "a\x85b", "a\x0bb", "a\x0cb", "\ud800", "a\udfffb",
)  # fmt: skip
ARGUMENTS = [text for text in CONTROLS if "\0" not in text]
TURNING = ("a\u202eb", "a\u2066b", "a\u200fb", "a\u061cb")
"""Characters that reverse the direction of the following text: a terminal shows the rest of the line reversed."""


def controls(text: str) -> set[str]:
    """The characters of a text that end a line, or change the state of a terminal."""
    return {char for char in text if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")}


def one_line_each(test: Any, output: str, records: int) -> None:
    lines = output.splitlines()
    test.assertEqual((records, set()), (len(lines), controls("".join(lines))), ascii(output))


class TestSql(test_limits.LimitsTestCase):
    """On each database, in every argument that takes a name."""

    def test_in_every_name(self) -> None:
        self.set(None, -1)
        before = sorted(hooks.tables(self.sql))
        for number, name in enumerate(SQL, 1):
            context = base.Context(name)
            group = resource = name.replace("/", "|")  # (no name of a resource, and none in a path, has a slash)
            self.engine.register_resource(resource)
            self.admin.add_project(base.ADMIN, name)
            self.admin.set_limit(base.ADMIN, resource, number, name)
            uuids = self.engine.reserve(context, {resource: 1}, consumer=name, group=group)
            self.engine.extend(context, group=group)
            self.engine.commit(context, consumer=name)
            (row,) = self.engine.list_reservations(base.ADMIN, name, consumer=name, group=group)
            self.assertEqual(
                (name, resource, name, group, uuids[0]),
                (row.project_id, row.resource, row.consumer, row.group, row.uuid),
            )
            self.assertEqual(number, self.engine.get_usages(context)[resource].limit)
            self.assertEqual([name], [one.project_id for one in self.admin.path(base.ADMIN, name) if one.used])
            self.engine.release(context, group=group)
        for name in SQL:
            for call in ("commit", "rollback", "release", "extend"):
                self.assertRaises(exceptions.ReservationNotFound, getattr(self.engine, call), base.ADMIN, [name])
            self.assertEqual([], self.engine.list_reservations(base.ADMIN, reservations=[name]))
        self.assertEqual(before, sorted(hooks.tables(self.sql)))
        self.assert_invariants()
        document = self.admin.export_limits(base.ADMIN)
        self.assertEqual([], self.admin.import_limits(base.ADMIN, yaml.safe_load(yaml.safe_dump(document))))


class TestLogs(test_limits.LimitsTestCase):
    """A log record is one line, for accepted names and for refused ones."""

    scenarios: list[Any] = []

    def setUp(self) -> None:
        super().setUp()
        self.set(None, 5)
        self.log = self.useFixture(fx.FakeLogger(format="%(levelname)s %(name)s %(message)s", level=logging.DEBUG))

    def test_refused_names(self) -> None:
        count = 0
        for name in (*CONTROLS, *SQL):
            for call in (
                lambda name=name: self.engine.reserve(self.context, {"gpu": 1, name: 1}),
                lambda name=name: self.engine.reserve(self.context, {"gpu": "x"}, consumer=name),
                lambda name=name: self.engine.commit(self.context, [name]),
                lambda name=name: self.engine.get_usages(base.ADMIN, " " + name),
                lambda name=name: self.admin.move_project(base.ADMIN, name, name),
                lambda name=name: self.admin.import_limits(base.ADMIN, {"projects": [{"id": name, "limits": name}]}),
                lambda name=name: self.admin.import_limits(base.ADMIN, {name: 1}),
                lambda name=name: self.engine.list_reservations(base.ADMIN, state=name),
            ):
                error = self.assertRaises(exceptions.QuotaError, call)
                logging.getLogger("caller").error("refused: %s", error)
                count += 1
        one_line_each(self, self.log.output, count)

    def test_accepted_names(self) -> None:
        names = [name for name in SQL if "/" not in name]  # (which no name of a resource has)
        for name in names:
            self.engine.register_resource(name)
            self.admin.set_limit(base.ADMIN, name, 2)
            self.engine.commit(base.Context(name), self.engine.reserve(base.Context(name), {name: 2}, consumer=name))
            error = self.assertRaises(exceptions.OverQuota, self.engine.reserve, base.Context(name), {name: 1})
            logging.getLogger("caller").error("refused: %s", error)
        for notice in self.engine.notices(base.ADMIN):
            notifications.notify(notice, None)
        self.assertIn("threshold crossed", self.log.output)
        one_line_each(self, self.log.output, len(self.log.output.splitlines()))
        for name in names:
            self.assertIn(f"project {name}, resource {name}: ", self.log.output)

    def test_a_notice_s_payload_is_data(self) -> None:
        sent = []
        for name in (*SQL, *TURNING):
            notifications.notify(Notice(name, name, 10, 9, 0, 80), sent.append)
        self.assertEqual([*SQL, *TURNING], [json.loads(json.dumps(notice.owner)) for notice in sent])
        one_line_each(self, self.log.output, len(sent))


class TestCommandLine(cli.CliTestCase):
    """Arguments, files, options, and the content of the database."""

    def refused_safely(self, *argv: str) -> None:
        ended = self.call(*argv)
        self.assertEqual((True, ""), (ended.status != 0, ended.out), argv)
        self.assertNotIn("Traceback", ended.err)
        self.shown_safely(ended.err)

    def shown_safely(self, text: str) -> None:
        turning = set("".join(TURNING)) - {"a", "b"}
        self.assertEqual(set(), (controls(text) - {"\n"}) | (turning & set(text)), ascii(text))

    def test_arguments(self) -> None:
        for name in ARGUMENTS:
            for argv in (
                ("reserve", "--project", name, "gpu=1"),
                ("reserve", "--project", "p", "--consumer", name, "gpu=1"),
                ("reserve", "--project", "p", f"{name}=1"),
                ("commit", name),
                ("show", "--usage", name),
                ("project", "set", name, "--no-parent"),
                ("set", "gpu=1", name),
                ("replay", name),
                ("limits", "import", name),
                ("--config-file", name, "list", "--usage"),
            ):
                self.refused_safely(*argv)

    def test_files(self) -> None:
        header = b"time,event,consumer,project,resource,amount\n"
        self.configure("[limits]\ndriver = database")
        for name in ARGUMENTS:
            data = name.encode("utf-8", "surrogatepass")
            for file, text, argv in (
                ("t.csv", header + b"0,reserve," + data + b",p,gpu,1\n", ("replay",)),
                ("t.csv", header + b"0," + data + b",c,p,gpu,1\n", ("replay",)),
                ("l.yaml", b'{"' + data + b'": 1}', ("limits", "import")),
                (
                    "l.yaml",
                    json.dumps({"projects": [{"id": name, "limits": {name: name}}]}).encode(),
                    ("limits", "import"),
                ),
            ):
                path = pathlib.Path(self.directory, file)
                path.write_bytes(text)
                self.refused_safely(*argv, str(path))

    def test_options(self) -> None:
        names = ("a\x1b[2Jb", "a\x9bb", "a\u2028b", "a\u202eb")
        options = (
            "[quota]\ndriver",
            "[limits]\ndriver",
            "[quota]\npurge_age",
            "[limits]\ndriver = database\nenforcement_model",
            "[limits]\nlimits",
        )
        for name, option in itertools.product(names, options):
            self.configure(f"{option} = {name}")
            self.shown_safely(self.call("list", "--usage").err)

    def test_tables_of_database_content(self) -> None:
        """Written by hand, or by a release that accepted it: it changes neither the table nor the terminal's state."""
        (row,) = self.good("reserve", "--project", "p", "--consumer", "c", "--group", "g", "gpu=1")
        sql = sa.create_engine(self.url, poolclass=sa.NullPool)
        for name in ("a\nb", "a\x1b[2Jb", "a\rb", "a\u202eb", "a\x9bb", "a\u2028b", "a\x85b"):
            with sql.begin() as connection:
                for table in ("reservations", "quota_usages"):
                    connection.execute(sa.text(f"UPDATE {table} SET project_id = :n, resource = :n"), {"n": name})
                connection.execute(sa.text("UPDATE reservations SET consumer_id = :n, group_id = :n"), {"n": name})
                connection.execute(sa.text("UPDATE projects SET project_id = :n"), {"n": name})
            for command in (("list", "--usage"), ("reservation", "list")):
                ended = self.call(*command)
                self.assertEqual((0, 5), (ended.status, len(ended.out.splitlines())), ascii(ended.out))
                self.shown_safely(ended.out)
                self.assertIn(printable(name), ended.out)
                self.assertEqual(name, json.loads(self.call(*command, "-f", "json").out)[0]["project_id"])
            self.shown_safely(self.call("reservation", "show", row["uuid"]).out)
