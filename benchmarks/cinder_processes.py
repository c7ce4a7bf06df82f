# SPDX-License-Identifier: Apache-2.0
"""Starts cinder_side.py, which measures Cinder's quota, in processes of Cinder's environment.

The database URL contains a password, so it is passed on stdin: any local user can read a process's arguments.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
from collections.abc import Sequence

from benchmarks import harness

SCRIPT = pathlib.Path(__file__).with_name("cinder_side.py")


def make(python: str, url: str, projects: int) -> None:
    """Create Cinder's schema, limits, and a usage row for each project."""
    command = [python, str(SCRIPT), "make", str(projects)]
    subprocess.run(command, input=f"{url}\n", text=True, check=True, stderr=subprocess.DEVNULL)


def turns(
    python: str, urls: Sequence[str], projects: int, mode: str = "run", script: pathlib.Path = SCRIPT
) -> harness.Round:
    """Return a function that runs a round of Cinder's reserve and commit; process n uses ``urls`` in turn.

    :param mode: ``run``, or ``try``: a cycle that raises an error is not counted.
    :param script: another script with the same arguments.
    """

    def turn(processes: int, seconds: float) -> harness.Sample:
        children = [
            subprocess.Popen(
                [python, str(script), mode, str(projects), str(number), str(seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for number in range(processes)
        ]
        for number, child in enumerate(children):
            _send_line(child, urls[number % len(urls)])
        for child in children:
            is_ready = child.stdout is not None and child.stdout.readline() == "ready\n"
            assert is_ready, f"a process of {script.name} failed"
        for child in children:
            _send_line(child, "go")
        answers = [json.loads(child.communicate()[0]) for child in children]
        latencies = [latency for process_latencies, _ in answers for latency in process_latencies]
        return harness.Sample(len(latencies), max(elapsed for _, elapsed in answers), latencies)

    return turn


def _send_line(child: subprocess.Popen[str], line: str) -> None:
    assert child.stdin is not None
    child.stdin.write(f"{line}\n")
    child.stdin.flush()
