# SPDX-License-Identifier: Apache-2.0
"""Commands on the measurements of pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.capacity_types import ResourceUse
from cyborg_quota.cmd import base, formats, paging
from cyborg_quota.cmd.errors import REFUSED
from cyborg_quota.pod_collection import COLLECT_SECONDS, ReadEndpoint
from cyborg_quota.pod_types import PodUsage
from cyborg_quota.surface.operations import Argument, Operation, cells, names_of

COLUMNS: Final = cells("pod", "resource", "capacity", "used", "measured_at", "age_seconds")


def _rows(usage: PodUsage) -> list[tuple[Any, ...]]:
    age = None if usage.age is None else int(usage.age.total_seconds())
    measured = (formats.timestamp(usage.measured_at), formats.Optional(age))
    if not usage.usage:
        empty = formats.Optional(None)
        return [(usage.pod, empty, empty, empty, *measured)]
    return [
        (usage.pod, formats.Optional(resource), formats.Optional(use.capacity), formats.Optional(use.used), *measured)
        for resource, use in sorted(usage.usage.items())
    ]


def reader(conf: cfg.ConfigOpts, timeout_seconds: float) -> ReadEndpoint:
    """The function that measures a pod by its endpoint. openstacksdk, which takes a second to load, is loaded late."""

    def read(endpoint: str, check: Callable[[int], object]) -> Mapping[str, ResourceUse]:
        try:
            from cyborg_quota.integrations.inventory.pod_placement import PodReader
        except ImportError as error:
            raise exceptions.ConfigurationError(
                f"A pod with an endpoint needs {error.name}: install cyborg_quota[keystone]."
            ) from None
        return PodReader(conf, timeout_seconds)(endpoint, check)

    return read


def _collect(run: base.Run, pods: list[str], timeout: int | None) -> list[tuple[Any, ...]]:
    seconds = timeout or COLLECT_SECONDS
    with base.progress_bar(len(pods) or len(run.engine.pods.list_pods(run.context)), "pods") as progress:
        collected = run.engine.pods.collect(
            run.context,
            pods or None,
            read_endpoint=reader(run.conf, seconds),
            timeout_seconds=seconds,
            progress=progress,
        )
    if any(one.error is not None for one in collected):
        run.status = REFUSED
    return [(*row, formats.Optional(one.error)) for one in collected for row in _rows(one.usage)]


Collect = base.generate(
    Operation(
        """Measure pods now: how much of each resource they have, and how much is used.

        A pod with an endpoint is measured by its Placement, through clouds.yaml; the
        resource rules of [cyborg] determine what is counted. Any other pod is measured
        by the inventories of its providers. A pod that does not answer in time keeps
        its last figures: age_seconds is their age, error is the reason, and the exit
        status is 1. Pods that are disabled are measured only if they are named.

        cyborg-quota-expirer measures all pods daily.
        """,
        "cyborg-quota pod usage collect",
        _collect,
        (
            Argument("pods", nargs="*", metavar="POD", help="only these pods"),
            Argument(
                "--timeout",
                type=paging.at_least_one,
                metavar="SECONDS",
                help=f"the time limit for each pod (default: {COLLECT_SECONDS})",
            ),
        ),
        cells(*names_of(COLUMNS), "error"),
    )
)

Show = base.generate(
    Operation(
        """Show the last measurement of each pod, or of one, and how old it is.

        A pod without a measurement does not count as full.
        """,
        "cyborg-quota pod usage show pod1",
        lambda run, name: [row for usage in run.engine.pods.list_usages(run.context, name) for row in _rows(usage)],
        (Argument("name", nargs="?", metavar="POD", help="only this pod"),),
        COLUMNS,
    )
)
