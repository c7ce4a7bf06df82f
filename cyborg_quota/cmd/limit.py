# SPDX-License-Identifier: Apache-2.0
"""Commands on limits: list, set, unset, show, tree, over."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from cyborg_quota import validation
from cyborg_quota.cmd import arguments, base, formats, limit_file, limit_preview, paging, projects
from cyborg_quota.cmd.errors import REFUSED, BadUsage
from cyborg_quota.limit_types import TreeRow
from cyborg_quota.types import LimitRecord

COLUMNS = ("project_id", "resource", "limit", "is_own", "source", "until")
TOTAL_COLUMNS = ("resource", "limit", "held", "available", "is_enforced")
POD_COLUMNS = ("project_id", "pod", "resource", "limit")
TREE_POSITION_COLUMNS = ("parent_id", "depth")
TREE_COLUMNS = ("project_id", *TREE_POSITION_COLUMNS, "resource", "limit", "used", "subtree_used", "available")
_COLUMNS_HELP = """\
used is what the project itself has attached. subtree_used is what the project
and all its descendants have attached or reserved. available is the project's
own limit minus subtree_used."""


class List(base.Lister):
    """List the limits that are set: first the defaults, then those of each project.

    With --project, list all limits that apply to the project. source says where
    each comes from: own (it was set for this project), inherited (the default, or
    the initial limit of a child), override (it applies until the time of the column
    until), or the limit driver if that is not `database`. is_own is true if a limit
    was set for this project, also while an override replaces it. The limit driver
    keystone needs --project.

    With --total, list the limits over all projects instead. held is used +
    reserved of all projects. is_enforced is false if `limit set --total` was
    interrupted: repeat it. Their --marker takes a resource.

    With --pod, list the limits in this pod, or without a name in all pods. Their
    --marker takes a project, a pod and a resource.
    """

    example = "cyborg-quota limit list --project P -f json"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        arguments.add_project(parser)
        kind = parser.add_mutually_exclusive_group()
        kind.add_argument("--total", action="store_true", help="list the limits over all projects")
        kind.add_argument("--pod", metavar="POD", nargs="?", const="", help="list the limits in this pod, or in any")
        paging.add_paging(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        if parsed_args.total:
            if parsed_args.project is not None:
                raise BadUsage("--total cannot be combined with --project.")
            totals = self.engine.total_limits.list(self.context)
            selected = paging.page(parsed_args, totals, lambda one: (one.resource,), ("resource",))
            return TOTAL_COLUMNS, [
                (one.resource, one.limit, one.held, one.limit - one.held, one.is_enforced) for one in selected
            ]
        if parsed_args.pod is not None:
            return POD_COLUMNS, self._in_pods(parsed_args)
        limits = self.engine.administration.list_limits(
            self.context, parsed_args.project, **paging.options(parsed_args)
        )
        return COLUMNS, [self._row(limit) for limit in limits]

    def _row(self, record: LimitRecord) -> tuple[Any, ...]:
        driver = self.conf.limits.driver
        source = driver if driver != "database" else "own" if record.is_own else "inherited"
        if record.project_id is None and driver == "database":
            source = "default"
        until = None
        if record.override is not None:
            source, until = "override", formats.timestamp(record.override.until)
        project_id, limit = formats.Default(record.project_id), formats.Limit(record.limit)
        return project_id, record.resource, limit, record.is_own, source, until or formats.Optional(None)

    def _in_pods(self, parsed_args: argparse.Namespace) -> list[tuple[Any, ...]]:
        limits = self.engine.pod_limits.list(self.context, parsed_args.project, parsed_args.pod or None)
        columns = ("project", "pod", "resource")
        selected = paging.page(parsed_args, limits, lambda one: (one.project_id, one.pod, one.resource), columns)
        return [(one.project_id, one.pod, one.resource, formats.Limit(one.limit)) for one in selected]


def _add_scope(parser: argparse.ArgumentParser) -> None:
    scope = parser.add_mutually_exclusive_group(required=True)
    scope.add_argument("--default", action="store_true", help="the default, for projects without a limit of their own")
    scope.add_argument("--project", metavar="PROJECT", help=f"the limit of one project: {arguments.PROJECT_HELP}")
    scope.add_argument("--total", action="store_true", help="the limit over all projects together")
    parser.add_argument(
        "--pod", metavar="POD", help="with --project: its limit in this pod, in addition to that over all pods"
    )
    arguments.add_project_domain(parser)


def _require_project(parsed_args: argparse.Namespace) -> None:
    if parsed_args.pod is not None and parsed_args.project is None:
        raise BadUsage("--pod needs --project: defaults and totals have no limits per pod.")


class Set(base.Previewer):
    """Set limits of one project, of all projects together, or defaults.

    All of them are set, or none.

    A limit may be lower than the present usage: then new reservations are
    refused, and `limit over` lists the project. A limit that [limits]
    enforcement_model does not allow is refused. With --dry-run, prints what would
    change, and the reasons for which it would be refused.

    With --until (and --from), the limits apply only during that span, in place of
    the limits that are set without --until.

    With --total, counts what all projects hold, in batches, while other programs
    reserve; the limits are enforced when the command ends. Repeat the command if
    it is interrupted.

    With --pod, the limits apply to what the project holds in this pod, in addition
    to the limits over all pods. What it holds there already counts.
    """

    example = (
        "cyborg-quota limit set --default gpu=10\n"
        "  cyborg-quota limit set --project P gpu=20 fpga=-1\n"
        "  cyborg-quota limit set --total gpu=2000\n"
        "  cyborg-quota limit set --project P --pod p1 gpu=4\n"
        "  cyborg-quota limit set --project P gpu=40 --from 2026-12-01T08:00Z --until 2026-12-05T18:00Z"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_scope(parser)
        arguments.add_force(parser)
        parser.set_defaults(reports_new_project=True)
        parser.add_argument(
            "--from",
            dest="start",
            type=arguments.moment,
            metavar="TIME",
            help="with --until: the limits apply from this time, as in 2026-12-01T08:00Z (default: now)",
        )
        parser.add_argument(
            "--until",
            type=arguments.moment,
            metavar="TIME",
            help="set the limits as overrides, which apply until this time; see `limit override list`",
        )
        arguments.add_reason(parser)
        parser.add_argument(
            "limits",
            nargs="+",
            type=arguments.limit,
            metavar="RESOURCE=LIMIT",
            help="the limit of a resource, as in gpu=20; -1 is unlimited, 0 allows nothing",
        )
        parser.add_argument("--dry-run", action="store_true", help="write nothing; print what would change")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        limits = arguments.once_each(parsed_args.limits, "limits")
        _require_project(parsed_args)
        if parsed_args.total:
            return self._set_total(parsed_args, limits)
        if parsed_args.pod is not None and (parsed_args.until is not None or parsed_args.start is not None):
            raise BadUsage("--pod cannot be combined with --from and --until: a limit per pod has no span of time.")
        if parsed_args.until is not None:
            return limit_file.COLUMNS, self._override(parsed_args, limits)
        if parsed_args.start is not None:
            raise BadUsage("--from needs --until.")
        if not parsed_args.dry_run:
            _set(self, parsed_args, limits)
            return limit_file.COLUMNS, []
        changes, self.refusal = limit_preview.preview(
            self.engine, self.context, parsed_args.project, limits, parsed_args.pod
        )
        return limit_file.COLUMNS, [limit_file.change_row(change) for change in changes]

    def _set_total(
        self, parsed_args: argparse.Namespace, limits: dict[str, int]
    ) -> tuple[Sequence[str], Iterable[Any]]:
        if parsed_args.until is not None or parsed_args.start is not None:
            raise BadUsage("--total cannot be combined with --from and --until.")
        totals = self.engine.total_limits
        if parsed_args.dry_run:
            changes = totals.preview(self.context, limits)
            return limit_file.COLUMNS, [limit_file.change_row(change) for change in changes]
        with base.progress_bar(None, "projects") as progress:
            totals.set(self.context, limits, reason=parsed_args.reason, progress=progress)
        return limit_file.COLUMNS, []

    def _override(self, parsed_args: argparse.Namespace, limits: dict[str, int]) -> Iterable[Any]:
        if parsed_args.project is None:
            raise BadUsage("--until needs --project: a default cannot be set for a span of time.")
        span: dict[str, Any] = {"until": parsed_args.until, "start": parsed_args.start}
        if parsed_args.dry_run:
            changes, self.refusal = limit_preview.preview_overrides(
                self.engine, self.context, parsed_args.project, limits, **span
            )
            return [limit_file.change_row(change) for change in changes]
        made = self.engine.administration.set_overrides(
            self.context, limits, parsed_args.project, **span, reason=parsed_args.reason
        )
        if self.notice is not None:
            self.notice += projects.remedy(f"limit override cancel {' '.join(one.id for one in made)}")
        return []


def _set(command: Any, parsed_args: argparse.Namespace, limits: Mapping[str, int | None]) -> None:
    """Set or unset (None) the limits of the project and the pod of the command line, or defaults."""
    engine, project, reason = command.engine, parsed_args.project, parsed_args.reason
    if parsed_args.pod is None:
        engine.administration.set_limits(command.context, limits, project, reason=reason)
    else:
        engine.pod_limits.set(command.context, limits, project, parsed_args.pod, reason=reason)


class Unset(base.Command):
    """Remove limits; the inherited limits apply again. All of them are removed, or none.

    Exits with 1 if one of them is not set.
    """

    example = "cyborg-quota limit unset --project P gpu"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_scope(parser)
        arguments.add_reason(parser)
        parser.add_argument("resources", nargs="+", metavar="RESOURCE", help="the resource whose limit is removed")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        if parsed_args.total:
            with base.progress_bar(None, "projects") as progress:
                self.engine.total_limits.unset(
                    self.context, parsed_args.resources, reason=parsed_args.reason, progress=progress
                )
            return
        _require_project(parsed_args)
        limits = {validation.check_name("resource", resource): None for resource in parsed_args.resources}
        if self.conf.limits.driver == "database":  # another driver refuses the change, and says where limits are set
            limit_preview.require_set(self.engine, self.context, parsed_args.project, limits, parsed_args.pod)
        _set(self, parsed_args, limits)


class _Tree(base.Lister):
    """Rows of the project tree. A table indents by depth; other formats have the columns parent_id and depth."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        paging.add_paging(parser)

    def rows(
        self, parsed_args: argparse.Namespace, tree_rows: Iterable[TreeRow], *, indented: bool = True
    ) -> tuple[Sequence[str], list[Any]]:
        rows = [
            (
                formats.Indented(row.project_id, row.depth if indented else 0),
                formats.Optional(row.parent_id),
                row.depth,
                row.resource,
                formats.Limit(row.limit),
                row.used,
                row.subtree,
                formats.Optional(None) if row.limit is None else formats.Available(row.available),
            )
            for row in paging.page(parsed_args, tree_rows, lambda row: (row.project_id, row.resource))
        ]
        if parsed_args.formatter != formats.TABLE or parsed_args.columns:
            return TREE_COLUMNS, rows
        indexes = [index for index, name in enumerate(TREE_COLUMNS) if name not in TREE_POSITION_COLUMNS]
        return [TREE_COLUMNS[index] for index in indexes], [[row[index] for index in indexes] for row in rows]


class _OfProject(_Tree):
    """A command with --project whose help explains the columns."""

    needs_project: ClassVar[bool] = False

    def get_description(self) -> str:
        return f"{super().get_description()}\n\n{_COLUMNS_HELP}"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        arguments.add_project(parser, required=self.needs_project)


class Show(_OfProject):
    """Show the limits that apply to a project: its own, and those of each ancestor."""

    example = "cyborg-quota limit show --project P"
    needs_project = True

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        return self.rows(parsed_args, self.engine.administration.path(self.context, parsed_args.project))


class Tree(_OfProject):
    """Show the project tree, or the subtree of one project, with limits and usage."""

    example = "cyborg-quota limit tree --project physics --depth 1"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--depth",
            type=paging.at_least_zero,
            metavar="N",
            help="only N levels below the first one, as in --depth 0 for the roots or the one project",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        rows = self.engine.administration.tree(self.context, parsed_args.project)
        if parsed_args.depth is not None:
            rows = [row for row in rows if row.depth <= parsed_args.depth]
        return self.rows(parsed_args, rows)


class Over(_Tree):
    """List projects whose usage exceeds a limit, for example after it was lowered.

    If there are any, prints a row for each limit and exits with 1; otherwise
    prints nothing and exits with 0. New reservations are refused there until the
    usage is below the limit again. The row (total) is a total limit over all
    projects; subtree_used is what all projects have attached or reserved.
    """

    example = "cyborg-quota limit over -f csv"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        exceeded = self.engine.administration.list_over(self.context)
        if exceeded:
            self.status = REFUSED
        return self.rows(parsed_args, exceeded, indented=False)
