# SPDX-License-Identifier: Apache-2.0
"""The commands of OpenStackClient, generated from operations. They make calls of the REST API."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import itertools
import operator
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from osc_lib import exceptions
from osc_lib.command import command

from cyborg_quota.osc.client import DOMAIN, QuotaClient, project_id, quoted
from cyborg_quota.surface import arguments, formats, paging
from cyborg_quota.surface.operations import (
    Column,
    OneOf,
    Operation,
    Route,
    flat,
    is_table,
)

_PROJECTS = ("project_id", "parent_id", "child_id")
"""The values that name projects: by their ids, or by their names in Keystone."""


class Lister(command.Lister):
    """A command that prints rows. An empty table says so on stderr; ``noun``: what it has none of."""

    noun: str

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Any, data: Any) -> int:
        if is_table(parsed_args) and not data:
            if self.noun:
                print(formats.nothing(self.noun), file=sys.stderr)
            return 0
        rows = data if parsed_args.formatter == "table" else map(formats.machine, data)
        return int(super().produce_output(parsed_args, column_names, rows))


class Run(command.Command):
    """A command that is generated from an operation.

    The call may set ``status``, the exit status, and ``noun``, what an empty table has none of.
    """

    app: Any
    operation: ClassVar[Operation]
    parsed: argparse.Namespace
    status: int = 0
    noun: str

    @property
    def client(self) -> QuotaClient:
        """The REST API."""
        return QuotaClient(self.app.client_manager)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.allow_abbrev = False  # --project would be --project-domain in a command that has no --project
        self.operation.add_to(parser)
        # Otherwise, all operands must stand in one place: not set gpu=4 --pod north PROJECT.
        parser.parse_args = parser.parse_intermixed_args  # type: ignore[method-assign]
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command; returns the exit status."""
        return int(super().run(parsed_args)) or self.status

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return what is shown; see Operation.run."""
        self.parsed = parsed_args
        return self.operation.run(self, parsed_args, **self.operation.values(vars(parsed_args)))


def generate(operation: Operation) -> Any:
    """The command of an operation."""
    return operation.command(Run, command.Command, Lister, command.ShowOne)


def remote(operation: Operation) -> Any:
    """The command that makes the call of the REST API of an operation that has a route."""
    route = operation.route
    assert route is not None
    shown = operation.columns and [
        column._replace(
            cell=_cell(column),
            value=_action if column.member == "action" else operator.methodcaller("get", column.member),
            title=_title(column.name),
        )
        for column in operation.columns
        if column.schema is not None and column.cell is not None
    ]
    # The arguments of the REST API, also where several stand for one of them, and the domain of a project's name.
    offered = [argument for argument in operation.arguments if isinstance(argument, OneOf) or argument.rest is not None]
    if any(argument.name in _PROJECTS for argument in flat(offered)):
        offered.append(DOMAIN)
    call = functools.partial(_call, operation, route)
    return generate(dataclasses.replace(operation, call=call, arguments=offered, columns=shown, noun=None))


def _title(name: str) -> str:
    return re.sub(r"\b(Id|Uuid)\b", lambda match: match[0].upper(), name.replace("_", " ").title())


def _action(row: Mapping[str, Any]) -> str:
    """The action, and the operation that made the change, as `cyborg-quota` shows them."""
    return f"{row['action']} ({row['operation']})" if row.get("operation") else str(row["action"])


def _cell(column: Column) -> Any:
    """A value as the command line of the host shows it: tags as it takes them, and the number of parts."""
    if column.schema is arguments.TAGS:
        return arguments.tags_text
    return lambda value: len(value) if isinstance(value, list) else column.cell and column.cell(value)


def _call(operation: Operation, route: Route, run: Run, **given: Any) -> Any:
    """Make the call, once for each value of an argument of the path that has several."""
    client, domain = run.client, given.pop("project_domain", None)
    for name in _PROJECTS:
        if name in given and (given[name] is not None or f"{{{name}}}" in route.path):
            is_id = name != "parent_id" and bool(given.get("force_project"))
            given[name] = project_id(client.manager, given[name], domain, force=is_id)
    in_path = re.findall(r"\{(\w+)\}", route.path)
    several = [given.pop(name) if isinstance(given[name], list) else [given.pop(name)] for name in in_path]
    limit = given.pop("limit", None)
    query, body = _request(operation, route, given)
    calls = {}
    for values in itertools.product(*several):
        path = route.path.format(**{name: quoted(value) for name, value in zip(in_path, values, strict=True)})
        path = path.removeprefix("/v2")
        if operation.is_list and route.method == "GET" and route.member is not None:
            return client.pages(route.member, path, limit, **query)
        calls[" ".join(map(str, values))] = functools.partial(client.call, route.method, path, body, **query)
    answer = each(calls)
    return answer and route.member and answer[route.member]


def each(calls: Mapping[str, Callable[[], Any]]) -> Any:
    """Make all of these calls; the keys name what each call changes. Returns the answer of the last one.

    Raises CommandError, with what was done, if one of them fails.
    """
    answer, done, failures = None, [], []
    for name, call in calls.items():
        try:
            answer = call()
            done.append(name)
        except exceptions.CommandError as error:
            failures.append(str(error))
    text = " ".join(failures)
    if failures and done:
        text = f"Done: {', '.join(done)}. Not done: {text.replace(' Nothing was changed.', '')}"
    if failures:
        raise exceptions.CommandError(text)
    return answer


def _request(operation: Operation, route: Route, given: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """The query, and the body."""
    is_query = route.method in ("GET", "DELETE")
    values = {
        argument.rest: _sent(given[argument.name], in_query=is_query)
        for argument in flat(operation.arguments)
        if argument.rest and argument.name in given and given[argument.name] not in (None, argument.default)
    }
    if is_query:
        return values, None
    for argument in operation.arguments:  # one of them must be given: null is a value
        if isinstance(argument, OneOf) and argument.required:
            values.setdefault(argument.arguments[0].rest, None)
    body: dict[str, Any] = {}
    for name, value in values.items():
        *parents, last = str(name).split(".")
        members = body
        for parent in parents:
            members = members.setdefault(parent, {})
        members[last] = value
    return {}, body


def _sent(value: Any, *, in_query: bool) -> Any:
    """A value as JSON, or as a parameter of the query."""
    if isinstance(value, datetime.date):
        return value.isoformat()
    if not in_query:
        return value
    if isinstance(value, Mapping):
        return arguments.tags_text(value)
    return paging.in_one_word(value) if isinstance(value, list) else value
