# SPDX-License-Identifier: Apache-2.0
"""A limit driver: each project's limits, from a JSON file that may change at any time.

{"film": {"gpu": 4, "fpga": 0}, "lab": {"gpu": -1}}
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Collection, Mapping, Sequence

from oslo_config import cfg

from cyborg_quota import Constraint
from cyborg_quota.limits import base

OPTS = [cfg.StrOpt("file", default="/etc/cyborg_quota/limits.json", help="Where each project's limits are.")]


class FileLimitDriver(base.LimitDriver):
    """A project or a resource that the file does not name is unlimited. A change counts from the next call on."""

    def __init__(self, path: str) -> None:
        self._path = pathlib.Path(path)

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> FileLimitDriver:
        conf.register_opts(OPTS, group="limits")
        return cls(conf.limits.file)

    def get_constraints(self, path: Sequence[str], resources: Collection[str]) -> list[Constraint]:
        limits = self.get_limits(path[:1], resources)
        return [Constraint(project_id, resource, limit) for (project_id, resource), limit in limits.items()]

    def get_limits(self, project_ids: Collection[str], resources: Collection[str]) -> Mapping[tuple[str, str], int]:
        stored = json.loads(self._path.read_text())
        return {
            (project_id, resource): int(stored[project_id][resource])
            for project_id in project_ids
            for resource in resources
            if resource in stored.get(project_id, {})
        }
