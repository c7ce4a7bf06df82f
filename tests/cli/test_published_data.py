# SPDX-License-Identifier: Apache-2.0
"""The examples of the documentation that use published data, with the directory of that data in CYBORG_QUOTA_DATA."""

from __future__ import annotations

import csv
import json
import os
import pathlib
import re
import subprocess
import sys

from tests.cli import base
from tests.doc_examples import normalized

DATA = os.environ.get("CYBORG_QUOTA_DATA")
DOCS = pathlib.Path(__file__).parents[2] / "doc/source"


class PublishedDataTest(base.CliTestCase):
    def setUp(self) -> None:
        super().setUp()
        if DATA is None:
            self.skipTest("CYBORG_QUOTA_DATA is not set")
        self.data = pathlib.Path(DATA or "")
        self.environment = {
            **os.environ,
            "HOME": str(self.directory),
            "OS_DATABASE__CONNECTION": self.url,
            "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def commands(self, page: str, first: str) -> list[tuple[str, str]]:
        """The commands and outputs of the block that begins with this command."""
        text = (DOCS / page).read_text()
        block = re.search(rf"(?m)^   \$ {re.escape(first)}(?:\n|.)*?(?=^\S)", text)
        assert block is not None, first
        lines = [line[3:] for line in block[0].rstrip().splitlines()]
        commands = "\n".join(lines).replace("\n>", "").removeprefix("$ ").split("\n$ ")
        return [(command, output) for command, _, output in (one.partition("\n") for one in commands)]

    def run_shell(self, command: str) -> str:
        """The output of a command in the directory of the test."""
        ended = subprocess.run(
            ["bash", "-c", command],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return ended.stdout

    def check(self, page: str, first: str) -> None:
        for command, output in self.commands(page, first):
            self.assertEqual(normalized(output), normalized(self.run_shell(command)), command)

    def test_half_of_each_peak(self) -> None:
        """The table of what-if.rst, and the numbers of its text."""
        (self.directory / "gpu_attach_trace.csv").symlink_to(self.data / "gpu_attach_trace.csv")
        self.check("what-if.rst", "echo '{}'")
        self.assertGreater((self.directory / "half.png").stat().st_size, 100_000)
        out = self.run_shell("cyborg-quota limit simulate half.yaml --against gpu_attach_trace.csv -f csv")
        rows = {row["project_id"]: row for row in csv.DictReader(out.splitlines())}
        with (self.data / "gpu_attach_trace.csv").open(newline="") as file:
            claims = sum(row["event"] == "reserve" for row in csv.DictReader(file))
        refused = sum(int(row["refused_after"]) for row in rows.values())
        text = (DOCS / "what-if.rst").read_text()
        self.assertIn(f"{refused:,} of the {claims:,} claims are refused.", text)
        self.assertIn(f"that {len(rows)} services held", text)
        one = rows["app_136"]
        self.assertIn(f"under its limit of {one['limit_after']}, {one['refused_after']} of them", text)

    def test_claims_on_an_inventory(self) -> None:
        """The report of capacity.rst: each service uses one of the models in turn, limited to three times its peak."""
        with (self.data / "gpu_nodes.csv").open(newline="") as file:
            nodes = list(csv.DictReader(file))
        models = sorted({node["gpu_model"] for node in nodes})
        with (self.directory / "nodes.csv").open("w") as file:
            file.write("provider,resource,total\n")
            file.writelines(f"n{one['node_name']},gpu.{one['gpu_model']},{one['gpu_capacity_num']}\n" for one in nodes)

        def resource_of(project_id: str) -> str:
            return f"gpu.{models[int(project_id.removeprefix('app_')) % len(models)]}"

        text = (self.data / "gpu_attach_trace.csv").read_text()
        (self.directory / "gpu_attach_trace.csv").write_text(text)
        header, *rows = csv.reader(text.splitlines())
        with (self.directory / "trace.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            writer.writerows([*row[:4], resource_of(row[3]), row[5]] for row in rows)
        resources = [f"gpu.{model}" for model in models]
        self.environment |= {
            "OS_QUOTA__RESOURCES": ",".join(["gpu", *resources]),
            "OS_DATABASE__SQLITE_SYNCHRONOUS": "false",
            "OS_LIMITS__DRIVER": "database",
        }
        (self.directory / "none.yaml").write_text("{}")
        unlimited = "OS_LIMITS__DRIVER=noop cyborg-quota"
        peaks = self.run_shell(f"{unlimited} limit simulate none.yaml --against trace.csv -f csv")
        projects = [
            {"id": row["project_id"], "limits": {row["resource"]: 3 * int(row["peak"])}}
            for row in csv.DictReader(peaks.splitlines())
        ]
        limits = {"defaults": dict.fromkeys(resources, 0), "projects": projects}
        (self.directory / "limits.yaml").write_text(json.dumps(limits))
        self.run_shell("cyborg-quota capacity enable && cyborg-quota limit import limits.yaml")
        self.check("capacity.rst", "cyborg-quota capacity import nodes.csv")
