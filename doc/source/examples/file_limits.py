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
from cyborg_quota.types import UsageKey

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
        return [self._bounds(self.limits([state], resources)) for state in states]

    def _bounds(self, limits: Mapping[UsageKey, int]) -> base.PathLimits:
        return base.PathLimits([Constraint(key.project_id, key.resource, limit) for key, limit in limits.items()])

    def limits(self, states: Sequence[PathState], resources: Collection[str]) -> Mapping[UsageKey, int]:
        stored = json.loads(self._path.read_text())
        keys = [UsageKey(state.project_ids[0], resource) for state in states for resource in resources]
        return {key: int(stored.get(key.project_id, {}).get(key.resource, UNLIMITED)) for key in keys}
