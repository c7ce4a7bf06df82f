# SPDX-License-Identifier: Apache-2.0
"""Compares this code with that of another commit: attach_side.py in processes of each, on databases of their own.

Each round runs both, one after the other, on the same server; the order alternates. The other commit has a git worktree
and an environment, .against/COMMIT, which stay for the next run.
"""

from __future__ import annotations

import itertools
import math
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Sequence

from benchmarks import cinder_processes
from benchmarks.report import Figure, Report
from tests import fixtures

TOP = pathlib.Path(__file__).resolve().parents[1]
SCRIPT = pathlib.Path(__file__).with_name("attach_side.py")
LEAST = 0.95
"""The lowest rate, as a multiple of that of the other commit."""
CASES = (
    # title, processes, projects, limit driver and accelerators of an attach
    ("1 process, 1 project", 1, 1, "database:1"),
    ("8 processes, 1 project", 8, 1, "database:1"),
    ("8 processes, 100 projects", 8, 100, "database:1"),
    ("1 process, 8 accelerators", 1, 1, "database:8"),
    ("config, 1 process, 1 project", 1, 1, "config:1"),
    ("config, 8 processes, 1 project", 8, 1, "config:1"),
    ("config, 8 processes, 100 projects", 8, 100, "config:1"),
)
LIMIT = "gpu=1000000000"
WORDS = (("db", "sync"), ("set", "--default", LIMIT), ("set", LIMIT, "p0"))
"""The commands that make the schema, and set the limits of the limit driver ``database``: a default and that of p0."""


def environment(report: Report, commit: str) -> str:
    """Make the worktree and the environment of a commit unless they exist. Returns its Python."""
    found = subprocess.run(
        ["git", "rev-parse", "--verify", f"{commit}^{{commit}}"], cwd=TOP, check=True, capture_output=True, text=True
    )
    tree = TOP / ".against" / found.stdout.strip()[:12]
    python = tree / ".venv" / "bin" / "python"
    if not tree.exists():
        subprocess.run(["git", "worktree", "prune"], cwd=TOP, check=True)
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), commit], cwd=TOP, check=True)
    if not python.with_name("cyborg-quota").exists():
        report.say(f"making the environment of {commit}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(python.parents[1])], check=True)
        install = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*install, "--editable", f"{tree}[mysql,postgresql]"], check=True)
    return str(python)


def sync(python: str, url: str) -> None:
    """Create the schema of an environment's code in a database, and limits."""
    program = [str(pathlib.Path(python).with_name("cyborg-quota")), "--config-file", "/dev/stdin"]
    text = f"[database]\nconnection = {url.replace('$', '$$')}\n[limits]\ndriver = database\n[quota]\nresources = gpu\n"

    for words in WORDS:
        subprocess.run([*program, *words], check=True, input=text, text=True, stdout=subprocess.DEVNULL)


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median (by order statistics). With fewer than six values: their range."""
    ordered, count = sorted(ratios), len(ratios)
    outside = 0.0
    for index in range(count // 2):
        outside += math.comb(count, index) / 2 ** (count - 1)
        if outside > 0.05:
            return ordered[max(index - 1, 0)], ordered[-max(index, 1)]
    return ordered[0], ordered[-1]


def run(report: Report, backend: str, commit: str, *, rounds: int, seconds: float) -> None:
    """Run all cases on one database."""
    pythons = {"old": environment(report, commit), "new": sys.executable}
    urls = {label: fixtures.fresh_url(backend, f"against_{label}") for label in pythons}
    for label, python in pythons.items():
        sync(python, urls[label])
    orders = itertools.cycle([("old", "new"), ("new", "old")])
    for title, processes, projects, case in CASES:
        turns = {
            label: cinder_processes.turns(python, [urls[label]], projects, case, SCRIPT)
            for label, python in pythons.items()
        }
        rates: dict[str, list[float]] = {"old": [], "new": []}
        for _ in range(rounds):
            for label in next(orders):
                rates[label].append(turns[label](processes, seconds).rate)
        ratios = [new / old for new, old in zip(rates["new"], rates["old"], strict=True)]
        low, high = interval(ratios)
        report.details[f"{backend}, {title}, against {commit}"] = rates
        for label, measured in rates.items():
            report.add(Figure(backend, title, f"{label}, cycles a second", statistics.median(measured)))
        name = f"new / old ({low:.2f} to {high:.2f})"
        report.add(Figure(backend, title, name, statistics.median(ratios), must=LEAST))
