# SPDX-License-Identifier: Apache-2.0
"""Commands on pods."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cyborg_quota.cmd import base, formats, paging
from cyborg_quota.cmd.errors import BadUsage
from cyborg_quota.pod_types import POD_STATES, Pod
from cyborg_quota.surface.operations import Argument, Column, OneOf, Operation, columns


def tags_text(affinity: Mapping[str, str]) -> str:
    """The tags as the command line takes them."""
    return ",".join(f"{key}={value}" for key, value in sorted(affinity.items()))


def tag(text: str) -> list[tuple[str, str]]:
    """Parse ``purpose=CAD``, or several tags as ``tags_text`` writes them: ``purpose=CAD,site=north``."""
    pairs = []
    for one in text.split(","):
        key, equals, value = one.partition("=")
        if not (key and equals and value):
            raise argparse.ArgumentTypeError(f"{text!a}: write KEY=VALUE, as in purpose=CAD")
        pairs.append((key, value))
    return pairs


def tags(options: Iterable[list[tuple[str, str]]] | None) -> dict[str, str]:
    """Return the tags as a dict. Raises BadUsage if a key is given twice."""
    found: dict[str, str] = {}
    for key, value in itertools.chain.from_iterable(options or ()):
        if key in found:
            raise BadUsage(f"The tag {key!a} is given twice.")
        found[key] = value
    return found


COLUMNS: Final = (
    Column("name"),
    Column("availability_zone", formats.Optional),
    Column("affinity", tags_text, lambda pod: pod.resource_affinity),
    *columns("state", "weight", "threshold"),
    Column("endpoint", formats.Optional),
)

NAME: Final = Argument("name", metavar="POD", help="the name of the pod")


def affinity(text: str) -> Argument:
    """--affinity, which can be repeated. ``text``: its help."""
    return Argument("--affinity", action="append", type=tag, metavar="KEY=VALUE", help=text)


Add = base.generate(
    Operation(
        "Add a pod: an OpenStack deployment of an availability zone.",
        "cyborg-quota pod add pod1 --zone az1 --affinity purpose=CAD --threshold 90",
        lambda run, affinity, **given: run.engine.pods.add(run.context, affinity=tags(affinity), **given),
        (
            NAME,
            Argument("--zone", metavar="ZONE", help="its availability zone"),
            affinity("a tag, for requests that ask for it; a pod with tags serves no request without tags"),
            Argument("--weight", type=int, default=0, metavar="N", help="higher is preferred (default: 0)"),
            Argument(
                "--threshold",
                type=int,
                default=100,
                metavar="PERCENT",
                help="the percentage of its capacity at which it counts as full (default: 100)",
            ),
            Argument(
                "--endpoint",
                metavar="CLOUD",
                help="CLOUD or CLOUD/REGION of clouds.yaml, to measure it by its Placement",
            ),
        ),
        COLUMNS,
        is_list=False,
    )
)

List = base.generate(
    Operation(
        "List all pods, in the order in which they were added.",
        "cyborg-quota pod list",
        lambda run, **given: run.engine.pods.list_pods(run.context, **given),
        (paging.LIMIT, paging.marker("POD", "start after the pod with this name")),
        COLUMNS,
    )
)

Show = base.generate(
    Operation(
        "Show one pod.",
        "cyborg-quota pod show pod1",
        lambda run, name: run.engine.pods.show(run.context, name),
        (NAME,),
        COLUMNS,
        is_list=False,
    )
)


def _set(run: base.Run, name: str, affinity: Any, *, no_affinity: bool, no_endpoint: bool, **given: Any) -> Pod:
    changes = {field: value for field, value in given.items() if value is not None}
    if no_endpoint:
        changes["endpoint"] = None
    if affinity or no_affinity:
        changes["affinity"] = tags(affinity)
    return run.engine.pods.change(run.context, name, **changes)


Set = base.generate(
    Operation(
        """Change a pod. What is not given stays as it is.

        The tags that are given replace all tags of the pod.
        """,
        "cyborg-quota pod set pod1 --weight 10 --threshold 85",
        _set,
        (
            NAME,
            Argument("--state", choices=POD_STATES, help="maintenance, disabled: it gets no new bindings"),
            OneOf(
                affinity("a tag; may be repeated"),
                Argument("--no-affinity", action="store_true", help="remove all tags"),
            ),
            Argument("--weight", type=int, metavar="N", help="higher is preferred"),
            Argument("--threshold", type=int, metavar="PERCENT", help="the use at which it counts as full"),
            OneOf(
                Argument("--endpoint", metavar="CLOUD", help="CLOUD or CLOUD/REGION of clouds.yaml"),
                Argument("--no-endpoint", action="store_true", help="measure it by the inventories of its providers"),
            ),
        ),
        COLUMNS,
        is_list=False,
    )
)

Drain = base.generate(
    Operation(
        """Put a pod into maintenance: it gets no new bindings.

        Its present bindings move to other pods when they are selected the next time.
        What projects hold in the pod stays there.
        """,
        "cyborg-quota pod drain pod1",
        lambda run, name: run.engine.pods.change(run.context, name, state="maintenance"),
        (NAME,),
        COLUMNS,
        is_list=False,
    )
)

Enable = base.generate(
    Operation(
        "Make a pod available again.",
        "cyborg-quota pod enable pod1",
        lambda run, name: run.engine.pods.change(run.context, name, state="available"),
        (NAME,),
        COLUMNS,
        is_list=False,
    )
)

Remove = base.generate(
    Operation(
        """Remove a pod to which no project is bound and no provider belongs.

        The history of its bindings stays.
        """,
        "cyborg-quota pod remove pod1",
        lambda run, name: run.engine.pods.remove(run.context, name),
        (NAME,),
    )
)
