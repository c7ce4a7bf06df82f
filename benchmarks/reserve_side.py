# SPDX-License-Identifier: Apache-2.0
"""One process that measures reserves with the code of one source tree. See without_capacity.py.

    python reserve_side.py TREE LABEL

The first line of stdin is the database URL, and each further one a command. "reserve N" makes N reserves without a
provider, and answers with the processor time of one in microseconds; "end" rolls them back; "count" answers with the
number of statements of a reserve, and "calls N" with the number of function calls of one. Nothing but the package of
the tree is imported: the tests change its caches.
"""

from __future__ import annotations

import cProfile
import dataclasses
import pathlib
import sys
import time
from typing import Any

PROJECTS = 20
WARM_CALLS = 500


@dataclasses.dataclass(frozen=True)
class Context:
    """A request context, with the attributes that the engine reads."""

    project_id: str
    is_admin: bool = False


class Side:
    """The engine of one tree, and what it has reserved."""

    def __init__(self, url: str, label: str) -> None:
        from cyborg_quota import QuotaEngine
        from cyborg_quota.db.settings import DatabaseSettings
        from cyborg_quota.driver import DbQuotaDriver, DriverSettings
        from cyborg_quota.limits.sources.config import ConfigLimitDriver

        settings = DriverSettings(database=DatabaseSettings(url=url))
        self._engine: Any = QuotaEngine(DbQuotaDriver(settings, ConfigLimitDriver({"gpu": 10**9})))
        self._engine.register_resources(["gpu"])
        self._contexts = [Context(f"p{number}") for number in range(PROJECTS)]
        self._label = label
        self._made = 0
        self._held: list[tuple[Context, list[str]]] = []

    def reserve(self, count: int) -> float:
        """The processor time of a reserve, in microseconds."""
        start = time.process_time()
        for _ in range(count):
            self._made += 1
            context = self._contexts[self._made % PROJECTS]
            uuids = self._engine.reserve(context, {"gpu": 1}, consumer=f"{self._label}-{self._made}")
            self._held.append((context, uuids))
        return (time.process_time() - start) / count * 1e6

    def end(self) -> None:
        """Roll back what is reserved."""
        for context, uuids in self._held:
            self._engine.rollback(context, uuids)
        self._held.clear()

    def calls(self, count: int) -> float:
        """The number of function calls of a reserve, which does not depend on the load of the machine."""
        profile = cProfile.Profile()
        profile.enable()
        self.reserve(count)
        profile.disable()
        self.end()
        return sum(entry.callcount for entry in profile.getstats()) / count

    def count(self) -> int:
        """The number of statements of a reserve."""
        import sqlalchemy as sa

        statements: list[str] = []

        def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
            statements.append(statement)

        sa.event.listen(sa.Engine, "before_cursor_execute", note)
        self.reserve(1)
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
        self.end()
        return len(statements)


def main() -> None:
    tree, label = sys.argv[1:]
    sys.path[0] = tree  # instead of the directory of this file
    import cyborg_quota

    if not pathlib.Path(cyborg_quota.__file__).is_relative_to(tree):
        sys.exit(f"{cyborg_quota.__file__} is not in {tree}")
    side = Side(sys.stdin.readline().strip(), label)
    side.reserve(WARM_CALLS)
    side.end()
    print("ready", flush=True)
    for line in sys.stdin:
        command, *numbers = line.split()
        answer = getattr(side, command)(*map(int, numbers))
        print(0 if answer is None else answer, flush=True)


if __name__ == "__main__":
    main()
