# SPDX-License-Identifier: Apache-2.0
"""The cache of paths, which the threads of a process share."""

from __future__ import annotations

from unittest import mock

from oslotest import base

from cyborg_quota.db import path_state
from cyborg_quota.db.path_state import ProjectPath
from cyborg_quota.db.usages import Node
from cyborg_quota.ledger.paths import PathCache
from cyborg_quota.types import ResourceKey, UsageKey


def path(*resources: str) -> ProjectPath:
    rows = {ResourceKey(name): (Node(number, "p1", name, 0, 0),) for number, name in enumerate(resources)}
    return ProjectPath(["p1"], rows)


class ForgottenByAnotherThread(dict[str, ProjectPath]):
    """Another thread moves a project between two look-ups of a path."""

    def __contains__(self, name: object) -> bool:
        found = super().__contains__(name)
        self.clear()
        return found


class TestPathCache(base.BaseTestCase):
    def test_another_thread_forgets_a_path_that_lacks_a_resource(self) -> None:
        cache = PathCache(mock.Mock())
        cache._cached_paths = ForgottenByAnotherThread(p1=path("fpga"))
        with mock.patch.object(path_state, "read_paths", return_value={"p1": path("fpga", "gpu")}) as read:
            cache.read_many(mock.Mock(), [UsageKey("p1", "gpu")])
        self.assertIsNotNone(cache.known(UsageKey("p1", "gpu")))
        self.assertLessEqual({ResourceKey("gpu")}, read.call_args.args[2])
