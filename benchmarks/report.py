# SPDX-License-Identifier: Apache-2.0
"""Collects figures and their targets; prints a table and writes a JSON file."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import platform
import subprocess
import sys
import time
from typing import Any

import cyborg_quota


@dataclasses.dataclass(frozen=True)
class Figure:
    """One figure. ``must`` and ``aim`` are bounds in its unit; None means no bound.

    ``is_most``: the bounds are maxima, not minima.
    """

    database: str
    case: str
    name: str
    value: float
    unit: str = ""
    must: float | None = None
    aim: float | None = None
    is_most: bool = False

    def reaches(self, bound: float | None) -> bool | None:
        """Return whether the value meets the bound; None if there is no bound."""
        if bound is None:
            return None
        return self.value <= bound if self.is_most else self.value >= bound

    @property
    def verdict(self) -> str:
        """The highest bound that is met: aim, must or MISSED; empty if there is no bound."""
        if self.must is None and self.aim is None:
            return ""
        if self.reaches(self.must) is False:
            return "MISSED"
        return "aim" if self.reaches(self.aim) else "must"


class Report:
    """Collects figures, prints the progress on stderr, and writes the results."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []
        self.details: dict[str, Any] = {}
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line of progress."""
        print(f"[{time.monotonic() - self._start:5.0f} s] {text}", file=sys.stderr, flush=True)

    def add(self, figure: Figure) -> None:
        """Add a figure, and print it."""
        self.figures.append(figure)
        self.say(f"{figure.database}, {figure.case}: {figure.name} {figure.value:.4g}{figure.unit} {figure.verdict}")

    def table(self) -> str:
        """Format all figures as a table."""
        rows = [("database", "case", "figure", "value", "must", "aim", "reaches")]
        for figure in self.figures:
            sign = "<= " if figure.is_most else ""
            rows.append(
                (
                    figure.database,
                    figure.case,
                    figure.name,
                    f"{_number(figure.value)}{figure.unit}",
                    "" if figure.must is None else f"{sign}{_number(figure.must)}",
                    "" if figure.aim is None else f"{sign}{_number(figure.aim)}",
                    figure.verdict,
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)

    def write(self, path: pathlib.Path) -> None:
        """Write all results as JSON, with a description of the machine."""
        content = {
            "machine": machine(),
            "figures": [{**dataclasses.asdict(figure), "verdict": figure.verdict} for figure in self.figures],
            "details": self.details,
        }
        path.write_text(json.dumps(content, indent=2) + "\n")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine() -> dict[str, object]:
    """Describe the machine and the software."""
    model = ""
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = os.getloadavg()[0]
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cyborg_quota": getattr(cyborg_quota, "__version__", ""),
        "commit": _commit(),
        "load_at_the_end": load,
    }


def _commit() -> str:
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
