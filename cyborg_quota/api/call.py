# SPDX-License-Identifier: Apache-2.0
"""One call of the API, as a handler gets it: who calls, for which project, and the validated parameters and body."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

from cyborg_quota import exceptions, validation
from cyborg_quota.api.errors import Refused, project_not_found
from cyborg_quota.api.schemas import COMPONENTS
from cyborg_quota.engine import QuotaEngine
from cyborg_quota.policy import Policy
from cyborg_quota.surface import formats
from cyborg_quota.surface.operations import Columns
from cyborg_quota.validation import Context

Item = TypeVar("Item")
Json = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Caller:
    """The context of a call of the engine. ``is_admin``: the policy of the API has already allowed the call."""

    project_id: str | None
    is_admin: bool
    user_id: str | None = None
    request_id: str | None = None


@dataclasses.dataclass(slots=True)
class Call:
    """A call that the policy allows. ``body`` and ``query`` agree with the schemas of the operation.

    ``context`` is the request context, whose ``is_admin`` follows from the policy. ``parent_id`` is the parent of the
    project of the call, if the policy had to know it. ``max_limit``: of the entries of a page. ``if_match`` is a header
    of the request, and ``headers`` are those of the answer.
    """

    engine: QuotaEngine
    policy: Policy
    context: Any
    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: Any
    url: str
    max_limit: int
    parent_id: str | None = None
    notice: str | None = None
    if_match: str | None = None
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    is_host: ClassVar[bool] = False

    @property
    def project_id(self) -> str:
        """The project in the URL."""
        return self.path["project_id"]

    @property
    def is_admin(self) -> bool:
        return self.context.is_admin is True

    @property
    def as_project(self) -> Context:
        """A context of the project of the call, with the rights of its users: it hides other projects (I8)."""
        return Caller(self.project_id, is_admin=False)

    @property
    def elevated(self) -> Context:
        """A context for a call of the engine that only an admin may make, after the policy has allowed it."""
        context = self.context
        return Caller(context.project_id, True, context.user_id, context.request_id)

    def allows(self, rule: str, project_id: str | None = None, parent_id: str | None = None) -> bool:
        """Whether the policy allows the caller to do this."""
        return self.policy.permits(rule, self.context, project_id, parent_id)

    def project_of_list(self, rule: str, rule_of_all: str) -> str | None:
        """The project of a list: that of the query; None (all) if ``rule_of_all`` allows it; or that of the token.

        Raises Refused (404) unless ``rule`` allows the caller to see the project.
        """
        project_id: str | None = self.query.get("project_id")
        if project_id is None and self.allows(rule_of_all):
            return None
        own, parent_id = self.context.project_id, None
        if project_id is None and own is None:
            raise Refused(403, "The token is not scoped to a project.")
        named = str(own if project_id is None else project_id)
        if named != own and not self.is_admin:
            parent_id = self.engine.limits.get_parent(self.elevated, named)
        if not self.allows(rule, named, parent_id):
            raise project_not_found(named)
        return named

    def require_project(self, project_id: str) -> None:
        """Raise Refused if neither the ledger nor Keystone knows the project, unless the body has ``force``.

        For an admin: what another user names has been looked up, because it follows from the project of the token.
        """
        if not self.is_admin or self.body.get("force", False):
            return
        try:
            self.engine.limits.require_project(self.elevated, project_id)
        except exceptions.UnknownProject as error:
            raise Refused(400, f"{error} Use force to use this id nevertheless.") from None

    @property
    def marker(self) -> str | None:
        """The last entry of the previous page of a list of projects. Raises InvalidName."""
        return validation.optional_name("marker", self.query.get("marker"))

    @property
    def limit(self) -> int:
        """The number of entries of a page."""
        return min(int(self.query.get("limit", self.max_limit)), self.max_limit)

    def page(
        self,
        name: str,
        items: Sequence[Item],
        render_item: Callable[[Item], Json],
        marker: Callable[[Item], str],
        *,
        following: str | None = None,
    ) -> Json:
        """A page of a list.

        ``items`` has one more for a next page, or ``following`` is the marker of the next page.
        """
        page = items[: self.limit]
        answer: Json = {name: [render_item(item) for item in page]}
        following = marker(page[-1]) if len(items) > len(page) else following
        if following is not None:
            query = {**self.query, "limit": self.limit, "marker": following}
            answer[f"{name}_links"] = [{"rel": "next", "href": f"{self.url}?{urllib.parse.urlencode(query)}"}]
        return answer


def moment(value: datetime.datetime | None) -> str | None:
    """A time of the database (naive UTC) in RFC 3339."""
    return None if value is None else value.replace(tzinfo=datetime.timezone.utc).isoformat().replace("+00:00", "Z")


_FIELDS: Final = {
    "amount": "delta",
    "in_use": "used",
    "start": "starts_at",
    "affinity": "resource_affinity",
}
"""The fields of the engine's records whose names differ from those of the API."""


def render(component: str, record: Any, **values: Any) -> Json:
    """The properties of a schema of COMPONENTS: ``values``, and the others with the values of a record's fields."""
    return {
        name: values[name] if name in values else _json(getattr(record, _FIELDS.get(name, name)))
        for name in COMPONENTS[component]["properties"]
    }


def render_columns(shown: Columns, record: Any) -> Json:
    """The members of a record."""
    return {column.member: _json(column.of(record)) for column in shown}


def _json(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return moment(value)
    if isinstance(value, formats.Cell):
        return value.machine_readable()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [_json(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return dict(value) if isinstance(value, Mapping) else value
