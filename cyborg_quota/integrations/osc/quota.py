# SPDX-License-Identifier: Apache-2.0
"""The commands ``openstack accelerator quota ...``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any, ClassVar, Final

from osc_lib import exceptions
from osc_lib.cli import format_columns, parseractions
from osc_lib.command import command

from cyborg_quota.integrations.osc.client import OWN_PROJECT, PROJECT, QuotaClient, project_id, quoted
from cyborg_quota.surface.operations import Argument, Arguments, OneOf, add_to

Table = tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]


class _Quota(command.Command):
    """What all commands share."""

    app: Any
    arguments: ClassVar[Arguments]

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add_to(parser, self.arguments)
        return parser

    @property
    def client(self) -> QuotaClient:
        """The REST API."""
        return QuotaClient(self.app.client_manager)

    def path(self, parsed: argparse.Namespace, part: str = "") -> str:
        """The path of a call for the project that the arguments name."""
        return f"/quotas/{quoted(project_id(self.app.client_manager, parsed))}{part}"


_REASON: Final = Argument("--reason", metavar="<reason>", help="Reason for the change, which the history shows.")


def _pod(help_text: str) -> Argument:
    return Argument("--pod", metavar="<pod>", help=help_text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _paging(what: str, marker: str) -> Arguments:
    return (
        Argument("--limit", metavar="<limit>", type=_positive, help=f"Maximum number of {what}."),
        Argument("--marker", metavar="<marker>", help=f"The {marker} after which the list begins."),
    )


class ShowQuota(_Quota, command.Lister):
    """Show the limits of a project, what it uses, and what fits."""

    arguments = (
        OneOf(
            Argument(
                "--usage", action="store_true", help="Also show the usage, what fits, and the limit that determines it."
            ),
            Argument(
                "--default",
                action="store_true",
                help="Show the limits that apply to a project without limits of its own.",
            ),
            Argument(
                "--total",
                action="store_true",
                help="Show the limits over all projects, and what these hold (admin only).",
            ),
        ),
        _pod("Show the limits in this pod only."),
        *OWN_PROJECT,
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return the columns and the rows."""
        pod = parsed_args.pod
        if parsed_args.total:
            return self._totals(parsed_args)
        if parsed_args.usage:
            detail = self.client.call("GET", self.path(parsed_args, "/detail"), pod=pod)["quota"]
            return ("Resource", *_DETAILS), _details(detail)
        if parsed_args.default and pod is not None:
            raise exceptions.CommandError("--default cannot be combined with --pod: a pod has no default limits.")
        part = "/defaults" if parsed_args.default else ""
        return ("Resource", "Limit"), sorted(
            self.client.call("GET", self.path(parsed_args, part), pod=pod)["quota"].items()
        )

    def _totals(self, parsed_args: argparse.Namespace) -> Table:
        if parsed_args.pod is not None or parsed_args.project is not None:
            raise exceptions.CommandError("--total cannot be combined with a project or with --pod.")
        totals = self.client.call("GET", "/quota_totals")["quota"]
        rows = ((resource, one["limit"], one["held"]) for resource, one in sorted(totals.items()))
        return ("Resource", "Limit", "Held"), rows


_DETAILS: Final = ("Limit", "In Use", "Reserved", "Fits", "Bound By")


def _details(quota: dict[str, Any]) -> Iterable[tuple[Any, ...]]:
    for resource, one in sorted(quota.items()):
        yield resource, one["limit"], one["in_use"], one["reserved"], one["fits"], _bound(one["bound_by"])


def _bound(bound: dict[str, Any] | None) -> str | None:
    """The project, the scope and the pod of the limit that determines what fits.

    The limit over all projects has no project.
    """
    if bound is None:
        return None
    project = "all projects" if bound["project_id"] is None else bound["project_id"]
    pod = bound.get("pod")
    return f"{project} ({bound['scope']}{'' if pod is None else f', pod {pod}'})"


class ListQuota(_Quota, command.Lister):
    """List the projects that have limits of their own, or limits in one pod (admin only)."""

    arguments = (
        Argument(
            "--detail", action="store_true", help="Also show the usage and what fits; one more request per project."
        ),
        _pod("List the projects that have limits in this pod, with these limits."),
        *_paging("projects", marker="project ID"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return the columns and the rows."""
        pod = parsed_args.pod
        found = self.client.pages("quotas", "/quotas", parsed_args.limit, marker=parsed_args.marker, pod=pod)
        if parsed_args.detail:
            return ("Project ID", "Resource", *_DETAILS), self._details(found, pod)
        rows = (
            (one["project_id"], resource, limit) for one in found for resource, limit in sorted(one["quota"].items())
        )
        return ("Project ID", "Resource", "Limit"), rows

    def _details(self, found: Iterable[dict[str, Any]], pod: str | None) -> Iterable[tuple[Any, ...]]:
        for one in found:
            quota = self.client.call("GET", f"/quotas/{quoted(one['project_id'])}/detail", pod=pod)["quota"]
            yield from ((one["project_id"], *row) for row in _details(quota))


class SetQuota(_Quota):
    """Set limits of a project, permanently or (with --until) for a span of time; or its limits in one pod."""

    arguments = (
        Argument(
            "--limit",
            metavar="<resource>=<limit>",
            action=parseractions.KeyValueAction,
            required=True,
            help="New limit of a resource; -1 means unlimited (repeat option to set several).",
        ),
        Argument("--from", dest="start", metavar="<time>", help="Start of the time span. Default: now."),
        Argument("--until", metavar="<time>", help="Set the limits until this time only, as in 2027-01-31T08:00:00Z."),
        _REASON,
        Argument("--force", action="store_true", help="Permit limits below what the project holds."),
        _pod("Set the limits in this pod."),
        *PROJECT,
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Set the limits."""
        limits = _integers(parsed_args.limit)
        reason = {} if parsed_args.reason is None else {"reason": parsed_args.reason}
        if parsed_args.until is None:
            if parsed_args.start is not None:
                raise exceptions.CommandError("--from needs --until.")
            more = {**({"force": True} if parsed_args.force else {}), **reason}
            if parsed_args.pod is not None:
                more["pod"] = parsed_args.pod
            self.client.call("PUT", self.path(parsed_args), {"quota": limits, **more})
            return
        if parsed_args.pod is not None:
            raise exceptions.CommandError("--pod cannot be combined with --until: limits in a pod have no overrides.")
        if parsed_args.force:
            raise exceptions.CommandError("--force cannot be combined with --until, and is not needed with it.")
        start = {} if parsed_args.start is None else {"start": parsed_args.start}
        override = {"quota": limits, "until": parsed_args.until, **start}
        self.client.call("POST", self.path(parsed_args, "/overrides"), {"override": override, **reason})


class DeleteQuota(_Quota):
    """Remove all limits of a project, so that the defaults apply; or those in one pod; or cancel one override."""

    arguments = (
        OneOf(
            Argument(
                "--override", metavar="<override>", help="Cancel this override instead (an ID; see quota history)."
            ),
            _pod("Remove the limits in this pod instead."),
        ),
        _REASON,
        *PROJECT,
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Remove the limits."""
        part = "" if parsed_args.override is None else f"/overrides/{quoted(parsed_args.override)}"
        self.client.call("DELETE", self.path(parsed_args, part), reason=parsed_args.reason, pod=parsed_args.pod)


class CheckQuota(_Quota, command.ShowOne):
    """Check whether a request would be granted now, and which limits would refuse it. Exit status 1: refused."""

    arguments = (
        Argument(
            "--amount",
            metavar="<resource>=<amount>",
            action=parseractions.KeyValueAction,
            required=True,
            help="Amount of a resource (repeat option to request several together).",
        ),
        *OWN_PROJECT,
    )

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command; returns the exit status."""
        status = int(super().run(parsed_args) or 0)
        return status or int(not self._granted)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], tuple[Any, ...]]:
        """Return the columns and the values."""
        body = {"check": _integers(parsed_args.amount)}
        answer = self.client.call("POST", self.path(parsed_args, "/check"), body)
        self._granted = bool(answer["granted"])
        return ("granted", "violations"), (self._granted, format_columns.ListDictColumn(answer["violations"]))


class ShowTree(_Quota, command.Lister):
    """Show a project and the projects below it, as far as the policy allows it."""

    arguments = (*OWN_PROJECT,)

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return the columns and the rows."""
        columns = ("Depth", "Project ID", "Parent ID", "Resource", "Limit", "In Use", "Subtree")
        return columns, self._rows(self.client.pages("tree", self.path(parsed_args, "/tree")))

    @staticmethod
    def _rows(nodes: Iterable[dict[str, Any]]) -> Iterable[tuple[Any, ...]]:
        for node in nodes:
            place = node["depth"], node["project_id"], node.get("parent_id")
            if not node["quota"]:
                yield (*place, None, None, None, None)
            for resource, one in sorted(node["quota"].items()):
                yield (*place, resource, one["limit"], one["in_use"], one.get("subtree"))


class ShowHistory(_Quota, command.Lister):
    """List the changes of the limits of a project, newest first."""

    arguments = (
        Argument("--since", metavar="<time>", help="Only changes since this time."),
        Argument(
            "--long", action="store_true", help="Also list the project and the request ID of the user (admin only)."
        ),
        *_paging("changes", marker="change ID"),
        *OWN_PROJECT,
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return the columns and the rows."""
        names = ("id", "at", "action", "resource", "pod", "before", "after", "start", "until", "override_id", "reason")
        query = {"since": parsed_args.since, "marker": parsed_args.marker}
        found = self.client.pages("history", self.path(parsed_args, "/history"), parsed_args.limit, **query)
        columns = ("ID", "At", "Action", "Resource", "Pod", "Before", "After", "From", "Until", "Override ID", "Reason")
        who = {"User ID": "user_id"}
        if parsed_args.long:
            who |= {"User Project ID": "user_project_id", "Request ID": "request_id"}
        return (*columns, *who), (tuple(one[name] for name in (*names, *who.values())) for one in found)


def _integers(values: dict[str, str]) -> dict[str, int]:
    """The values as integers. Raises CommandError."""
    try:
        return {name: int(value) for name, value in values.items()}
    except ValueError:
        raise exceptions.CommandError(
            f"Each value must be an integer: {', '.join(f'{name}={value}' for name, value in values.items())}"
        ) from None
