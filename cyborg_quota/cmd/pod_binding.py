# SPDX-License-Identifier: Apache-2.0
"""Commands on the bindings of projects to pods."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cyborg_quota import exceptions
from cyborg_quota.cmd import arguments, base, formats, paging, pod
from cyborg_quota.cmd.errors import BadUsage
from cyborg_quota.pod_types import Binding

SELECT_COLUMNS = ("pod", "zone", "affinity", "starts_at", "reason")
COLUMNS = ("id", "project_id", "pod", "zone", "affinity", "starts_at", "ends_at", "reason")


def _select_values(binding: Binding) -> tuple[Any, ...]:
    return (
        formats.Optional(binding.pod),
        formats.Optional(binding.availability_zone),
        pod.tags_text(binding.resource_affinity),
        formats.timestamp(binding.starts_at),
        binding.reason,
    )


def _add_key(parser: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    arguments.add_project(parser, required=is_required)
    parser.add_argument("--zone", metavar="ZONE", help="the availability zone (default: any)")
    pod.add_affinity(parser, "a tag that the pod must have; may be repeated (default: a pod without tags)")


class Select(base.ShowOne):
    """Print the pod of a project; bind the project to a pod if needed.

    The present binding stays unless its pod is full, in maintenance or disabled,
    and another pod passes the filters ([pods] filters). Amounts say which
    resources are needed: without them, a pod counts as full if any of its
    resources is.
    """

    example = "cyborg-quota pod select --project film --zone az1 gpu=2"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_key(parser)
        arguments.add_amounts(parser, nargs="*", text="the amount of a resource that is needed, as in gpu=2")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        request = arguments.once_each(parsed_args.deltas, "amounts") or None
        tags = pod.tags(parsed_args.affinity)
        try:
            binding = self.engine.pods.select(self.context, parsed_args.zone, tags, request, parsed_args.project)
        except exceptions.NoPodFits as error:
            raise exceptions.QuotaError(f"{error} See `pod list` and `pod usage show`.") from None
        return SELECT_COLUMNS, _select_values(binding)


class List(base.Lister):
    """List the current bindings of projects to pods, the oldest first."""

    example = "cyborg-quota pod binding list --project film --history"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        arguments.add_project(parser)
        parser.add_argument("--pod", metavar="POD", help="only those to this pod")
        parser.add_argument("--history", action="store_true", help="also those that ended")
        paging.add_limit(parser)
        parser.add_argument(
            "--marker", type=paging.at_least_zero, default=0, metavar="ID", help="start after the binding with this id"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        bindings = self.engine.pods.list_bindings(
            self.context,
            parsed_args.project,
            pod=parsed_args.pod,
            history=parsed_args.history,
            limit=parsed_args.limit,
            after=parsed_args.marker,
        )
        return COLUMNS, [
            (
                binding_id,
                binding.project_id,
                binding.pod,
                formats.Optional(binding.availability_zone),
                pod.tags_text(binding.resource_affinity),
                formats.timestamp(binding.starts_at),
                formats.timestamp(binding.ends_at),
                binding.reason,
            )
            for binding_id, binding in bindings
        ]


class Move(base.ShowOne):
    """Bind a project to another pod. What the project holds stays where it is."""

    example = "cyborg-quota pod binding move pod2 --project film --zone az1"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        pod.add_name(parser)
        _add_key(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        binding = self.engine.pods.move_binding(
            self.context, parsed_args.project, parsed_args.name, parsed_args.zone, pod.tags(parsed_args.affinity)
        )
        return SELECT_COLUMNS, _select_values(binding)


class End(base.Command):
    """End the current binding of a project, or all current bindings to a pod.

    The next selection of each project creates another binding. To empty a pod
    before it is removed, run `pod drain` first: while the pod is available,
    projects can be bound to it again.
    """

    example = "cyborg-quota pod binding end --project film --zone az1"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_key(parser, is_required=False)
        parser.add_argument("--pod", metavar="POD", help="end all bindings to this pod, and print their number")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        if (parsed_args.pod is None) == (parsed_args.project is None):
            raise BadUsage("Give either --project or --pod.")
        if parsed_args.pod is not None:
            if parsed_args.zone is not None or parsed_args.affinity:
                raise BadUsage("--pod ends the bindings of all zones and tags: give neither --zone nor --affinity.")
            ended = self.engine.pods.end_bindings(self.context, parsed_args.pod)
            self.notice = f"bindings ended: {ended}"
            return
        self.engine.pods.end_binding(
            self.context, parsed_args.project, parsed_args.zone, pod.tags(parsed_args.affinity)
        )
