# SPDX-License-Identifier: Apache-2.0
"""Cinder's quota, from our side: cinder_side.py in processes of Cinder's own environment.

The database's URL has a password in it, so it goes by stdin: any user of the machine can read a process's arguments.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
from collections.abc import Sequence

from benchmarks import harness

SCRIPT = pathlib.Path(__file__).with_name("cinder_side.py")


def make(python: str, url: str, projects: int) -> None:
    """Make Cinder's quota tables, and a usage row for each project."""
    command = [python, str(SCRIPT), "make", str(projects)]
    subprocess.run(command, input=f"{url}\n", text=True, check=True, stderr=subprocess.DEVNULL)


def turns(python: str, urls: Sequence[str], projects: int, mode: str = "run") -> harness.Round:
    """Cinder's own functions, each process on the next of ``urls``.

    :param mode: ``run``; or ``try``, where a cycle whose error reaches its caller does not count.
    """

    def turn(processes: int, seconds: float) -> harness.Sample:
        children = [
            subprocess.Popen(
                [python, str(SCRIPT), mode, str(projects), str(number), str(seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for number in range(processes)
        ]
        for number, child in enumerate(children):
            _tell(child, urls[number % len(urls)])
        for child in children:
            assert child.stdout is not None and child.stdout.readline() == "ready\n", "a Cinder process failed"
        for child in children:
            _tell(child, "go")
        answers = [json.loads(child.communicate()[0]) for child in children]
        latencies = [latency for taken, _ in answers for latency in taken]
        return harness.Sample(len(latencies), max(elapsed for _, elapsed in answers), latencies)

    return turn


def _tell(child: subprocess.Popen[str], line: str) -> None:
    assert child.stdin is not None
    child.stdin.write(f"{line}\n")
    child.stdin.flush()
