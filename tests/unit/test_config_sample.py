# SPDX-License-Identifier: Apache-2.0
"""The committed sample configuration agrees with the options."""

from __future__ import annotations

import io
import pathlib
import re

import fixtures as fx
from oslo_config import cfg, generator
from oslo_policy import generator as policy_generator
from oslotest import base

from cyborg_quota.conf import opts

ROOT = pathlib.Path(__file__).parents[2]
INPUT = ROOT / "etc/cyborg_quota/config-generator.conf"
SAMPLE = ROOT / "etc/cyborg_quota/cyborg_quota.conf.sample"
OUR_GROUPS = ("api", "budgets", "capacity", "cyborg", "limits", "metrics", "notices", "pods", "quota")
"""These are compared word by word. The texts of oslo.db and oslo.log differ between their releases."""


def sections(text: str) -> dict[str, str]:
    """Return the content of each [group]."""
    parts = re.split(r"(?m)^\[(\w+)\]\n", text)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


class SampleTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.sample = sections(SAMPLE.read_text())

    def test_it_is_current(self) -> None:
        settings = cfg.ConfigOpts()
        generator.register_cli_opts(settings)
        settings(["--config-file", str(INPUT)], default_config_files=[], default_config_dirs=[])
        written = io.StringIO()
        generator.generate(settings, output_file=written)
        fresh = sections(written.getvalue())
        for group in OUR_GROUPS:
            self.assertEqual(fresh[group], self.sample[group], "stale: run tox -e genconfig")
        self.assertEqual(fresh.keys(), self.sample.keys())
        self.assertRegex(self.sample["database"], r"(?m)^#connection = ")

    def test_the_number_of_options(self) -> None:
        """Each is one that every later reader has to know: make a constant of one, or raise the number on purpose."""
        options = [option for _, group in opts.list_opts() for option in group]
        self.assertLessEqual(len(options) + len(opts.HOST_OPTS), 48)
        self.assertEqual([], [option.name for option in options if not (option.help or "").endswith(".")])


class PolicySampleTest(base.BaseTestCase):
    def test_it_is_current(self) -> None:
        path = self.useFixture(fx.TempDir()).join("policy.yaml")
        policy_generator.generate_sample(["--namespace", "cyborg_quota", "--output-file", path], cfg.ConfigOpts())
        committed = (ROOT / "etc/cyborg_quota/policy.yaml.sample").read_text()
        self.assertEqual(pathlib.Path(path).read_text(), committed, "stale: run tox -e genconfig")
