# SPDX-License-Identifier: Apache-2.0
"""Options that nothing reads are found, and those that something reads are not."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable

import fixtures as fx
from oslo_config import cfg
from oslo_policy import generator
from oslotest import base

from cyborg_quota import policy
from cyborg_quota.conf import check, loading
from tests import forked

ROOT = pathlib.Path(__file__).parents[2]


class ConfigCheckTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = pathlib.Path(self.useFixture(fx.TempDir()).path, "cyborg_quota.conf")

    def find(self, text: str) -> list[str]:
        self.path.write_text(text)
        return check.find(loading.load(cfg.ConfigOpts(), ["--config-file", str(self.path)]))

    def test_a_misspelled_option(self) -> None:
        for text, expected in (
            ("[limits]\ndrivr = database", f"[limits] drivr in {self.path} is no option"),
            ("[limit]\ndriver = x", f"[limit] driver in {self.path} is no option"),
            ("[DEFAULT]\ndatabase = x", f"[DEFAULT] database in {self.path} is no option"),
            ("[Limits]\nxyz = 1", f"[limits] xyz in {self.path} is no option"),
        ):  # fmt: skip
            found = self.find(text)
            self.assertEqual([expected], found, "without the value")

    def test_what_other_libraries_read(self) -> None:
        """Also by a former name (user_name): oslo.config itself warns of it."""
        text = (
            "[DEFAULT]\ndebug = true\nlog_file = x\ntransport_url = rabbit://\n[database]\nconnection = sqlite://\n"
            "max_pool_size = 5\n[oslo_policy]\npolicy_file = p\n[oslo_messaging_notifications]\ndriver = log\n"
            "[oslo_limit]\nauth_type = password\nauth_url = u\nuser_name = n\npassword = s\nendpoint_id = e\n"
            "user_domain_id = d\nsystem_scope = all\n"
        )  # fmt: skip
        self.assertEqual([], self.find(text))

    def test_an_option_that_a_limit_driver_registers(self) -> None:
        self.path.write_text("[limits]\nfile = limits.json")
        conf = loading.load(cfg.ConfigOpts(), ["--config-file", str(self.path)])
        self.assertEqual(1, len(check.find(conf)))
        conf.register_opt(cfg.StrOpt("file"), group="limits")
        self.assertEqual([], check.find(conf))

    def test_a_directory_of_files(self) -> None:
        (self.path.parent / "10-limits.conf").write_text("[limits]\ndrivr = database")
        (self.path.parent / "notes.txt").write_text("[limits]\ndrovr = database")
        conf = loading.load(cfg.ConfigOpts(), ["--config-dir", str(self.path.parent)])
        self.assertEqual(1, len(check.find(conf)))

    def test_the_sample_configuration(self) -> None:
        """All its options, without the comment signs."""
        lines = (ROOT / "etc/cyborg_quota/cyborg_quota.conf.sample").read_text().splitlines()
        text = "\n".join(
            line.removeprefix("#")
            for line in lines
            if line.startswith("[") or (line[:1] == "#" and line[1:2].isalpha() and " = " in line)
        )
        self.path.write_text(text)
        sections: dict[str, object] = {}
        cfg.ConfigParser(str(self.path), sections).parse()
        self.assertGreater(len(sections), 7)
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[str(self.path)], default_config_dirs=[])
        self.assertEqual([], check.find(conf))


class OsloPolicyTest(base.BaseTestCase):
    """The programs of oslo.policy find our rules and our enforcer by their entry points."""

    def test_each_program(self) -> None:
        """In a process of its own: it uses a global object."""
        directory = pathlib.Path(self.useFixture(fx.TempDir()).path)
        rules, conf = directory / "policy.yaml", directory / "cyborg_quota.conf"
        conf.write_text(f"[oslo_policy]\npolicy_file = {rules}\n")

        def run(program: Callable[[list[str]], None]) -> None:
            cfg.CONF.reset()
            program(["--namespace", "cyborg_quota", "--config-file", str(conf)])

        own = '"cyborg_quota:limit:set": "role:quota_manager"'
        for program, text, status, printed in (
            (generator.generate_policy, f'{own}\n"old:rule": "role:a"\n', 0, own),
            (
                generator.list_redundant,
                f'"cyborg_quota:limit:set": "{policy.DEFAULT}"\n',
                0,
                "cyborg_quota:limit:set",
            ),
            (generator.validate_policy, '"cyborg_quota:limit:sett": "role:a"\n', 1, "cyborg_quota:limit:sett"),
        ):
            rules.write_text(text)
            found = forked.run(functools.partial(run, program))
            self.assertEqual(status, found.status, found.err + found.out)
            self.assertIn(printed, found.out if status == 0 else found.out + found.err)
