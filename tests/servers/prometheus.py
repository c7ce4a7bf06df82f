"""A private Prometheus, with the rules in etc/prometheus."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.servers import machine
from tests.servers.base import Server

RULES = Path(__file__).parents[2] / "etc/prometheus/rules.yaml"

CONFIG = """\
global:
  scrape_interval: 1s
  evaluation_interval: 1s
rule_files: [rules.yaml]
scrape_configs:
  - job_name: cyborg_quota
    static_configs:
      - targets: {targets}
"""


class Prometheus(Server):
    """Scrapes ``targets`` (host:port) every second."""

    name = "prometheus"
    users = ("prometheus", "nobody")
    stop_signal = signal.SIGTERM
    death_signal = "KILL"

    def __init__(self, *targets: str) -> None:
        super().__init__()
        self._targets = list(targets)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _initialization(self, data: Path) -> list[str]:
        machine.find("prometheus")
        self._private_file("prometheus.yml", CONFIG.format(targets=json.dumps(self._targets)))
        self._private_file("rules.yaml", RULES.read_text())
        return []

    def _command(self, data: Path) -> list[str]:
        assert self.directory is not None
        return [
            machine.find("prometheus"),
            f"--config.file={self.directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={data}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as response:
            return bool(response.status == 200)
        return False

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """The labels and the value of each series of an expression. Raises HTTPError (400) if it is invalid."""
        found = self.ask("query", query=expression)["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as response:
            return json.load(response)["data"]


def promtool(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run promtool. Raises ServerError if it is not installed."""
    command = [machine.find("promtool"), *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)
