# SPDX-License-Identifier: Apache-2.0
"""``openstack accelerator quota`` through the real program, with a real Keystone and the served REST API."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import fixtures as fx
import testtools
from openstackclient import shell

from tests import base, doc_examples
from tests.integration import catalog, test_rest_api
from tests.integration.server import Keystone

PROGRAM = pathlib.Path(sys.executable).with_name("openstack")


def variables(keystone: Keystone, name: str, password: str, project: str) -> dict[str, str]:
    """The environment of a user of the default domain. ``project``: an id, or the name of one in the same domain."""
    is_id = len(project) == 32
    return {
        "OS_AUTH_URL": keystone.url,
        "OS_USERNAME": name,
        "OS_PASSWORD": password,
        "OS_PROJECT_ID" if is_id else "OS_PROJECT_NAME": project,
        "OS_USER_DOMAIN_ID": "default",
        **({} if is_id else {"OS_PROJECT_DOMAIN_ID": "default"}),
        "OS_IDENTITY_API_VERSION": "3",
        "OS_INTERFACE": "public",
    }


def run(test: testtools.TestCase, environment: Mapping[str, str], *arguments: str) -> tuple[Any, str, str]:
    """Run ``openstack`` with this environment; returns the exit status, stdout and stderr.

    In this process: the program needs a second for its imports.
    """
    out, err = io.StringIO(), io.StringIO()
    for name in [name for name in os.environ if name.startswith("OS_") and name != "OS_TEST_TIMEOUT"]:
        test.useFixture(fx.EnvironmentVariable(name))
    for name, value in environment.items():
        test.useFixture(fx.EnvironmentVariable(name, value))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            ended = shell.main([*arguments])
        except SystemExit as stop:
            ended = stop.code
    return ended, out.getvalue(), err.getvalue()


def run_program(environment: Mapping[str, str], *arguments: str) -> str:
    """Run ``openstack`` in a process of its own, as users do; returns its output. Raises CalledProcessError."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
    command, variables = [str(PROGRAM), *arguments], {**inherited, **environment}
    return subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout


class TestCommands(test_rest_api.PersonasTestCase):
    """The limits of gpu are 20 for ``parent``, 10 for its child ``project``, which holds 3, and 5 for ``elsewhere``."""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(catalog.OnlyAccelerator(self.keystone, f"{self.api.url}/v2"))
        self.people = {"alice": variables(self.keystone, "admin", self.keystone.password, "admin")}

    @property
    def name_of_project(self) -> str:
        return str(self.keystone.admin.get(f"/projects/{self.project}").json()["project"]["name"])

    def run_as(self, who: str, *arguments: str, status: int = 0) -> str:
        """Run ``openstack accelerator quota``; returns what it prints: on an error, on stderr."""
        ended, out, err = run(self, self.people[who], "accelerator", "quota", *arguments)
        self.assertEqual(status, ended, out + err + self.api.log[-2000:])
        self.assertNotIn("Traceback", out + err)
        return err if status and not out else out

    def json_as(self, who: str, *arguments: str, status: int = 0) -> Any:
        return json.loads(self.run_as(who, *arguments, "-f", "json", status=status))

    def test_an_admin(self) -> None:
        name = self.name_of_project
        self.run_as("alice", "set", "gpu=12", "fpga=0", name, "--reason", "two cards")
        self.assertEqual(
            [{"Resource": "fpga", "Limit": 0}, {"Resource": "gpu", "Limit": 12}],
            self.json_as("alice", "show", name, "--project-domain", "Default"),
        )
        self.assertEqual([0, 0], [row["Limit"] for row in self.json_as("alice", "show", "--default", name)])
        refused = self.run_as("alice", "set", "gpu=2", name, status=1)
        self.assertRegex(refused, r"gpu: 2 is less than 3 in use and 0 reserved.*\(HTTP 409, req-[0-9a-f-]+\)")
        self.run_as("alice", "set", "--force", "gpu=2", name)
        self.run_as("alice", "set", "gpu=9", name, "--until", "2999-01-31T08:00:00Z")
        rows = self.json_as("alice", "history", "list", "--limit", "2", "--project", name)
        expected = [("gpu", 9, "2999-01-31T08:00:00Z"), ("gpu", 2, None)]
        self.assertEqual(expected, [(row["Resource"], row["After"], row["Until"]) for row in rows])
        [override] = self.json_as("alice", "override", "list", "--project", name)
        self.run_as("alice", "override", "delete", override["ID"], "--project", name)
        self.run_as("alice", "delete", name)
        self.assertEqual([0, 0], [row["Limit"] for row in self.json_as("alice", "show", name)])
        self.assertIn("No Project found", self.run_as("alice", "show", "no-such-project", status=1))

    def test_limits_in_pods(self) -> None:
        self.engine.pods.add(base.ADMIN, "north")
        self.run_as("alice", "set", "gpu=4", "--pod", "north", self.project)
        self.assertEqual(
            [{"Resource": "gpu", "Limit": 4}], self.json_as("alice", "show", "--pod", "north", self.project)
        )
        [_, row] = self.json_as("alice", "show", "--usage", "--pod", "north", self.project)
        self.assertEqual(("gpu", 4, 0), (row["Resource"], row["Limit"], row["In Use"]))
        self.assertEqual(
            [{"Project ID": self.project, "Resource": "gpu", "Limit": 4}],
            self.json_as("alice", "list", "--pod", "north"),
        )
        self.run_as("alice", "delete", "--pod", "north", "--reason", "the end", self.project)
        changes = self.json_as("alice", "history", "list", "--limit", "2", "--long", "--project", self.project)
        self.assertEqual(
            [("gpu", "north", 4, None, "the end"), ("gpu", "north", None, 4, None)],
            [tuple(one[name] for name in ("Resource", "Pod", "Before", "After", "Reason")) for one in changes],
        )
        self.assertRegex(f"{changes[0]['User ID']} {changes[0]['Request ID']}", "^[0-9a-f]{32} req-")
        self.assertEqual([10], [one["Limit"] for one in self.json_as("alice", "show", self.project)][1:])
        for arguments in (("show", "--total", self.project), ("show", "--default", "--pod", "north")):
            self.run_as("alice", *arguments, status=1)

    def test_a_project_s_own_user(self) -> None:
        user = self.keystone.create_user(f"projects/{self.project}", "reader")
        self.people["rita"] = variables(self.keystone, *user, self.project)
        [_, row] = self.json_as("rita", "show", "--usage")
        self.assertEqual(("gpu", 10, 3, 7), (row["Resource"], row["Limit"], row["In Use"], row["Fits"]))
        amount = ("check", "gpu=7", self.name_of_project)
        self.assertEqual([], self.json_as("rita", *amount))
        [row] = self.json_as("rita", "check", "gpu=8", status=1)
        self.assertEqual(("gpu", 10, 8), (row["Resource"], row["Limit"], row["Requested"]))
        self.assertIn("resource gpu: limit 10, used 3", self.run_as("rita", "check", "gpu=8", status=1))
        self.assertEqual([self.project] * 2, [row["Project ID"] for row in self.json_as("rita", "list", "--tree")])
        refused = self.run_as("rita", "set", "gpu=99", self.project, status=1)
        self.assertIn("(rule cyborg_quota:limit:set). (HTTP 403", refused)
        for stranger in (self.elsewhere, "0" * 32):
            self.assertIn(
                f"Project {stranger} was not found. (HTTP 404", self.run_as("rita", "show", stranger, status=1)
            )
        self.assertIn("(HTTP 403", self.run_as("rita", "list", status=1))

    def test_the_commands_of_the_pages(self) -> None:
        """For a service and a project of this test."""
        service, _ = self.keystone.create_service()
        names = {"accelerator": service, "cyborg": service, "film": self.project, "cyborg-quota": os.urandom(4).hex()}
        for shown in doc_examples.commands_of(__name__):
            words = [names.get(word, word) for word in shown.command.split()[1:]]
            ended, out, err = run(self, self.people["alice"], *(w.replace("-prompt", "=x") for w in words))
            self.assertEqual(0, ended, out + err)

    def test_bad_usage(self) -> None:
        for arguments, words in (
            (("set", "gpu=many", "p"), "gpu=many"),
            (("set", "gpu", "p"), "name one project only"),
            (("set", "gpu=1", self.project, "--from", "2999-01-01"), "--until"),
            (("history", "list", "--limit", "0"), "write an integer from 1"),
        ):
            self.assertIn(words, self.run_as("alice", *arguments, status=1 if words == "--until" else 2))

    def test_the_program_has_these_commands_beside_cyborg_s(self) -> None:
        status, described, err = run(self, self.people["alice"], "help", "accelerator")
        self.assertEqual((0, ""), (status or 0, err))
        for name in ("accelerator quota set", "accelerator quota history list", "accelerator arq create"):
            self.assertIn(name, described)
        shown = run_program(self.people["alice"], "accelerator", "quota", "show", self.project, "-f", "json")
        [_, row] = json.loads(shown)
        self.assertEqual({"Resource": "gpu", "Limit": 10}, row)
