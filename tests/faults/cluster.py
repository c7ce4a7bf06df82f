# SPDX-License-Identifier: Apache-2.0
"""Scenarios of faults of a Galera cluster under load. Workers write to all nodes concurrently."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from tests.faults.load import Crew, Ledger
from tests.servers.base import session
from tests.servers.galera import Galera

HOT_AND_SPREAD = ("hot",) * 20 + tuple(f"p{number}" for number in range(50))


def create_ledger(cluster: Galera, name: str, *, with_capacity: bool = False) -> Ledger:
    """Create a ledger in a database of its own. Its checks see everything that any node has answered."""
    return Ledger(create_database(cluster, name)[0], with_capacity=with_capacity)


def create_database(cluster: Galera, name: str) -> list[str]:
    """Create an empty database; returns its URL on each node."""
    cluster.nodes[0].create_database(name)
    wait_until_replicated(cluster)
    return [node.url_of(name) for node in cluster.nodes]


def wait_until_replicated(cluster: Galera) -> None:
    """Wait until every node has applied all that any of them has answered."""
    for node in cluster.nodes:
        node.wait_synced()
        with session(node.url) as connection:
            connection.exec_driver_sql("SET SESSION wsrep_sync_wait = 7")
            connection.exec_driver_sql("SELECT COUNT(*) FROM mysql.user")


def load(
    cluster: Galera,
    ledger: Ledger,
    act: Callable[[Crew], None],
    projects: Sequence[str] = ("hot", "cold"),
    *,
    seed: int,
    workers: int = 6,
    **changes: object,
) -> None:
    """Call ``act()`` while workers write, each to a node of its own."""
    name = str(sa.make_url(ledger.url).database)
    urls = [node.url_of(name) for node in cluster.nodes]
    with ledger.crew(workers, seed, projects, urls, **changes) as crew:
        act(crew)
    wait_until_replicated(cluster)


def away(cluster: Galera, how: str, seconds: float) -> Callable[[Crew], None]:
    """Take the last node away in the middle of the load, for ``seconds``, and bring it back before the load ends.

    ``how``: "kill"; "pause": it is suspended, for longer than the others wait for it; "isolate": a network partition,
    after which it is alone on its side, together with its clients.
    """
    node = cluster.nodes[-1]
    ways: dict[str, Sequence[Callable[[], None]]] = {
        "kill": (node.kill, node.rejoin),
        "pause": (node.pause, node.resume, node.wait_rejoined),
        "isolate": (lambda: node.isolate(True), lambda: node.isolate(False), node.wait_rejoined),
    }
    leave, *back = ways[how]

    def act(_crew: Crew) -> None:
        time.sleep(0.5)
        leave()
        time.sleep(seconds)
        for step in back:
            step()
        time.sleep(0.5)

    return act
