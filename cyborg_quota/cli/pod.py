# SPDX-License-Identifier: Apache-2.0
"""pod measure: how much of each resource the pods have, and how much is used."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.cli import base
from cyborg_quota.cli.errors import REFUSED
from cyborg_quota.surface import arguments, formats
from cyborg_quota.surface.operations import Argument, Column, Operation, columns, numbered
from cyborg_quota.types.capacity import COLLECT_SECONDS, PodUsage, ResourceUse


def read_endpoint(conf: cfg.ConfigOpts, timeout_seconds: float, endpoint: str) -> Mapping[str, ResourceUse]:
    """Measure a pod by its endpoint. openstacksdk, which takes a second to load, is loaded late."""
    try:
        from cyborg_quota.capacity.imports import plan
    except ImportError as error:
        raise exceptions.ConfigurationError(
            f"A pod with an endpoint needs {error.name}: install cyborg_quota[keystone]."
        ) from None
    return plan.read_use(conf, endpoint, timeout_seconds=timeout_seconds)


def _collect(run: base.Run, pods: list[str], timeout: int | None) -> list[tuple[Any, ...]]:
    seconds = timeout or COLLECT_SECONDS
    with base.progress_bar(len(pods) or len(run.engine.pods.list_pods(run.context)), "pods") as progress:
        collected = run.engine.pods.collect(
            run.context,
            pods or None,
            read_endpoint=functools.partial(read_endpoint, run.conf, seconds),
            timeout_seconds=seconds,
            progress=progress,
        )
    if any(outcome.error is not None for outcome in collected):
        run.status = REFUSED
    return [(*row, outcome.error) for outcome in collected for row in _usage_rows(outcome.usage)]


def _usage_rows(usage: PodUsage) -> list[tuple[Any, ...]]:
    """The rows of a measurement, one for each resource."""
    measured = usage.measured_at, None if usage.age is None else int(usage.age.total_seconds())
    if not usage.usage:
        return [(usage.pod, None, None, None, *measured)]
    return [(usage.pod, resource, use.capacity, use.used, *measured) for resource, use in sorted(usage.usage.items())]


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
        "cyborg-quota pod measure",
        _collect,
        (
            Argument("pods", nargs="*", metavar="POD", help="only these pods"),
            Argument(
                "--timeout",
                type=arguments.positive,
                metavar="SECONDS",
                help=f"the time limit for each pod (default: {COLLECT_SECONDS})",
            ),
        ),
        numbered(
            Column("pod"),
            *columns("resource", "capacity", "used", cell=formats.Optional),
            Column("measured_at", formats.timestamp),
            *columns("age_seconds", "error", cell=formats.Optional),
        ),
    )
)
