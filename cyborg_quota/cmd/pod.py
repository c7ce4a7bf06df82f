# SPDX-License-Identifier: Apache-2.0
"""Commands on pods."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cyborg_quota.cmd import base, formats, paging
from cyborg_quota.cmd.errors import BadUsage
from cyborg_quota.pod_types import POD_STATES, Pod

COLUMNS = ("name", "availability_zone", "affinity", "state", "weight", "threshold", "endpoint")


def values(pod: Pod) -> tuple[Any, ...]:
    """The values of COLUMNS."""
    return (
        pod.name,
        formats.Optional(pod.availability_zone),
        tags_text(pod.resource_affinity),
        pod.state,
        pod.weight,
        pod.threshold,
        formats.Optional(pod.endpoint),
    )


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


def add_affinity(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Add --affinity, which can be repeated."""
    parser.add_argument("--affinity", action="append", type=tag, metavar="KEY=VALUE", help=help_text)


def add_name(parser: argparse.ArgumentParser) -> None:
    """Add the name of a pod."""
    parser.add_argument("name", metavar="POD", help="the name of the pod")


class Add(base.ShowOne):
    """Add a pod: an OpenStack deployment of an availability zone."""

    example = "cyborg-quota pod add pod1 --zone az1 --affinity purpose=CAD --threshold 90"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_name(parser)
        parser.add_argument("--zone", metavar="ZONE", help="its availability zone")
        add_affinity(parser, "a tag, for requests that ask for it; a pod with tags serves no request without tags")
        parser.add_argument("--weight", type=int, default=0, metavar="N", help="higher is preferred (default: 0)")
        parser.add_argument(
            "--threshold",
            type=int,
            default=100,
            metavar="PERCENT",
            help="the percentage of its capacity at which it counts as full (default: 100)",
        )
        parser.add_argument(
            "--endpoint",
            metavar="CLOUD",
            help="CLOUD or CLOUD/REGION of clouds.yaml, to measure it by its Placement",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        pod = self.engine.pods.add(
            self.context,
            parsed_args.name,
            zone=parsed_args.zone,
            affinity=tags(parsed_args.affinity),
            weight=parsed_args.weight,
            threshold=parsed_args.threshold,
            endpoint=parsed_args.endpoint,
        )
        return COLUMNS, values(pod)


class List(base.Lister):
    """List all pods, in the order in which they were added."""

    example = "cyborg-quota pod list"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        paging.add_limit(parser)
        parser.add_argument("--marker", metavar="POD", help="start after the pod with this name")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        pods = self.engine.pods.list_pods(self.context, limit=parsed_args.limit, after=parsed_args.marker)
        return COLUMNS, [values(pod) for pod in pods]


class Show(base.ShowOne):
    """Show one pod."""

    example = "cyborg-quota pod show pod1"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_name(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        return COLUMNS, values(self.engine.pods.show(self.context, parsed_args.name))


class Set(base.ShowOne):
    """Change a pod. What is not given stays as it is.

    The tags that are given replace all tags of the pod.
    """

    example = "cyborg-quota pod set pod1 --weight 10 --threshold 85"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_name(parser)
        parser.add_argument("--state", choices=POD_STATES, help="maintenance, disabled: it gets no new bindings")
        given = parser.add_mutually_exclusive_group()
        given.add_argument("--affinity", action="append", type=tag, metavar="KEY=VALUE", help="a tag; may be repeated")
        given.add_argument("--no-affinity", action="store_true", help="remove all tags")
        parser.add_argument("--weight", type=int, metavar="N", help="higher is preferred")
        parser.add_argument("--threshold", type=int, metavar="PERCENT", help="the use at which it counts as full")
        given = parser.add_mutually_exclusive_group()
        given.add_argument("--endpoint", metavar="CLOUD", help="CLOUD or CLOUD/REGION of clouds.yaml")
        given.add_argument("--no-endpoint", action="store_true", help="measure it by the inventories of its providers")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        changes = {
            name: getattr(parsed_args, name)
            for name in ("state", "weight", "threshold", "endpoint")
            if getattr(parsed_args, name) is not None
        }
        if parsed_args.no_endpoint:
            changes["endpoint"] = None
        if parsed_args.affinity or parsed_args.no_affinity:
            changes["affinity"] = tags(parsed_args.affinity)
        return COLUMNS, values(self.engine.pods.change(self.context, parsed_args.name, **changes))


class _State(base.ShowOne):
    """Sets the state of a pod."""

    state: Any

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_name(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        return COLUMNS, values(self.engine.pods.change(self.context, parsed_args.name, state=self.state))


class Drain(_State):
    """Put a pod into maintenance: it gets no new bindings.

    Its present bindings move to other pods when they are selected the next time.
    What projects hold in the pod stays there.
    """

    example = "cyborg-quota pod drain pod1"
    state = "maintenance"


class Enable(_State):
    """Make a pod available again."""

    example = "cyborg-quota pod enable pod1"
    state = "available"


class Remove(base.Command):
    """Remove a pod to which no project is bound and no provider belongs.

    The history of its bindings stays.
    """

    example = "cyborg-quota pod remove pod1"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_name(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.engine.pods.remove(self.context, parsed_args.name)
