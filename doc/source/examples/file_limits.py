# SPDX-License-Identifier: Apache-2.0
"""A limit driver: each project's limits, from a JSON file that may change at any time.

{"film": {"gpu": 4, "fpga": 0}, "lab": {"gpu": -1}}
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Collection, Mapping, Sequence

from oslo_config import cfg

from cyborg_quota import UNLIMITED, Constraint
from cyborg_quota.db.path_state import PathState
from cyborg_quota.ledger import limit_source as base

OPTS = [cfg.StrOpt("file", default="/etc/cyborg_quota/limits.json", help="Where each project's limits are.")]


class FileLimitDriver(base.LimitDriver):
    """A project or a resource that the file does not name is unlimited. A change counts from the next call on."""

    def __init__(self, path: str) -> None:
        self._path = pathlib.Path(path)

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> FileLimitDriver:
        conf.register_opts(OPTS, group="limits")
        return cls(conf.limits.file)

    def bounds(self, states: Sequence[PathState], resources: Collection[str]) -> list[base.PathLimits]:
        stored = json.loads(self._path.read_text())
        return [base.PathLimits(self._constraints(stored, state.project_ids[0], resources)) for state in states]

    def _constraints(
        self, stored: Mapping[str, Mapping[str, int]], project_id: str, resources: Collection[str]
    ) -> list[Constraint]:
        limits = stored.get(project_id, {})
        return [Constraint(project_id, resource, int(limits.get(resource, UNLIMITED))) for resource in resources]
