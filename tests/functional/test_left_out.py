# SPDX-License-Identifier: Apache-2.0
"""A subject can be left out: without its folder and its line in driver.py, the ledger works."""

from __future__ import annotations

import configparser
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Collection

import fixtures as fx
from oslotest import base

TOP = pathlib.Path(__file__).parents[2]
PACKAGE = TOP / "cyborg_quota"

PROGRAM = """
import importlib.util
import sys
# (The finder of an editable installation would import from the checkout what the copy lacks.)
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in str(getattr(finder, "__module__", ""))]
import cyborg_quota
from cyborg_quota import validation
from cyborg_quota.api import deploy
from cyborg_quota.cli import expirer, main
from cyborg_quota.conf import loading
from falcon import testing
from oslo_config import cfg

assert cyborg_quota.__file__.startswith(sys.argv[1]), cyborg_quota.__file__
for name in sys.argv[3:]:
    assert importlib.util.find_spec(f"cyborg_quota.{name}") is None, name
context, options = validation.admin_context(), ["--config-file", sys.argv[2]]
conf = loading.load(cfg.ConfigOpts(), options)
engine = cyborg_quota.make_engine(conf)
conf.set_override("auth", "noauth", "api")
assert main.main([*options, "db", "sync"]) == 0
for limit in ("gpu=3", "fpga=1"):
    assert main.main([*options, "set", "p", limit]) == 0
uuids = engine.reserve(context, {"gpu": 2}, project_id="p")
engine.commit(context, uuids, "p")
try:
    engine.reserve(context, {"gpu": 2}, project_id="p")
except cyborg_quota.exceptions.OverQuota:
    print("refused")
engine.limits.add_project(context, "empty")
engine.limits.remove_project(context, "empty")
assert engine.audit(context) == engine.heal(context) == []
assert main.main([*options, "list", "--usage"]) == 0
assert engine.monitoring.read(context).projects
headers = {"X-Identity-Status": "Confirmed", "X-Roles": "admin", "X-Project-Id": "p", "X-User-Id": "alice"}
answer = testing.TestClient(deploy.make_bare_application(conf, engine)).simulate_get("/v2/quotas", headers=headers)
print(answer.json)
engine.release(context, uuids, "p")
assert not engine.get_usages(context, "p")["gpu"].used
print(sorted(engine.subjects))
for name in sys.argv[3:]:
    try:
        getattr(engine, name)
    except cyborg_quota.exceptions.ConfigurationError as error:
        print(error)
print("expired", expirer.main([*options, "--once"]))
"""


def entry_points(without: Collection[str]) -> str:
    """The entry points of the package, in the format of an installed one, without those of some subjects."""
    config = configparser.ConfigParser(delimiters=("=",))
    config.optionxform = str  # type: ignore[assignment, method-assign]
    config.read(TOP / "setup.cfg")
    lines = []
    for group, text in config["options.entry_points"].items():
        lines += [f"[{group}]", *text.splitlines()]
    return "\n".join(line for line in lines if not any(f"cyborg_quota.{name}." in line for name in without))


class TestLeftOut(base.BaseTestCase):
    def run_without(self, *names: str) -> list[str]:
        """Run PROGRAM with a copy of the package that has none of these subjects. Returns what it prints."""
        folder = pathlib.Path(self.useFixture(fx.TempDir()).path)
        shutil.copytree(PACKAGE, folder / PACKAGE.name)
        driver = folder / PACKAGE.name / "driver.py"
        lines = driver.read_text().splitlines(keepends=True)
        for name in names:
            shutil.rmtree(folder / PACKAGE.name / name)
            of_subject = re.compile(rf'from cyborg_quota\.{name}\b|    "{name}": ')
            lines = [line for line in lines if not of_subject.match(line)]
        driver.write_text("".join(lines))
        (folder / "cyborg_quota-0.dist-info").mkdir()
        (folder / "cyborg_quota-0.dist-info" / "METADATA").write_text("Name: cyborg_quota\nVersion: 0\n")
        (folder / "cyborg_quota-0.dist-info" / "entry_points.txt").write_text(entry_points(names))
        config = folder / "cyborg_quota.conf"
        config.write_text(
            f"[database]\nconnection = sqlite:///{folder}/ledger.db\n[quota]\nresources = gpu,fpga\n"
            "[limits]\ndriver = database\n"
        )
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder), str(config), *names]
        environment = os.environ | {"PYTHONPATH": str(folder)}
        found = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        self.assertEqual(0, found.returncode, found.stdout + found.stderr)
        return found.stdout.splitlines()

    def test_it_works_without_them(self) -> None:
        """(Pods use the capacity.)"""
        subjects = {"pods", "capacity", "hours"}
        for names in (["pods"], ["capacity", "pods"], ["pods", "capacity", "hours"]):
            lines = self.run_without(*names)
            no_subjects = [f"This installation has no {name}." for name in names]
            for line in ("refused", str(sorted(subjects.difference(names))), "expired 0", *no_subjects):
                self.assertIn(line, lines)
            self.assertTrue(any(re.search(r"\bp\b.*\bgpu\b.*\b2\b", line) for line in lines), lines)
            self.assertTrue(any("'project_id': 'p'" in line and "'gpu': 3" in line for line in lines), lines)
