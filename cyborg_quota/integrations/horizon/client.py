# SPDX-License-Identifier: Apache-2.0
"""The REST API of quota, with the token and the service catalog of the user who is logged in."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from django.conf import settings
from django.utils.translation import gettext as _
from keystoneauth1 import exceptions as keystone_exceptions
from keystoneauth1 import session, token_endpoint
from openstack_auth import utils as auth_utils
from openstack_dashboard.api import base

from cyborg_quota.integrations.horizon import errors, rows

SERVICE_TYPE: Final = "accelerator"
TIMEOUT_SECONDS: Final = 30.0
_VERSION: Final = "/v2"
_ATTRIBUTE: Final = "_cyborg_quota_client"

Json = dict[str, Any]


def of(request: Any) -> QuotaClient:
    """The client of a request of Horizon. All calls of one request share its connection."""
    if not hasattr(request, _ATTRIBUTE):
        setattr(request, _ATTRIBUTE, QuotaClient(request))
    client: QuotaClient = getattr(request, _ATTRIBUTE)
    return client


class QuotaClient:
    """Calls of the REST API. Each raises QuotaAPIError."""

    def __init__(self, request: Any) -> None:
        endpoint = str(base.url_for(request, SERVICE_TYPE)).rstrip("/")
        # The endpoint of the catalog may end in the version.
        self._endpoint = endpoint if endpoint.endswith(_VERSION) else endpoint + _VERSION
        self._session = session.Session(
            auth=token_endpoint.Token(self._endpoint, request.user.token.id),
            verify=False if settings.OPENSTACK_SSL_NO_VERIFY else settings.OPENSTACK_SSL_CACERT or True,
            original_ip=auth_utils.get_client_ip(request),
            timeout=TIMEOUT_SECONDS,
        )

    def usage(self, project_id: str) -> list[rows.ResourceUsage]:
        """The limit, the usage and the headroom of each resource."""
        quota = self._call("GET", _project(project_id, "/detail"))["quota"]
        return [rows.ResourceUsage.read(resource, one) for resource, one in sorted(quota.items())]

    def set_limits(self, project_id: str, limits: Mapping[str, int], reason: str, *, force: bool) -> None:
        """Set limits of a project; those of other resources stay."""
        body = {"quota": dict(limits), **_reason(reason), **({"force": True} if force else {})}
        self._call("PUT", _project(project_id), json=body)

    def unset_limits(self, project_id: str, reason: str) -> None:
        """Remove all limits of a project, so that the defaults apply."""
        self._call("DELETE", _project(project_id), params=_reason(reason))

    def limits(self, project_id: str) -> dict[str, int | None]:
        """The limits of a project, own or default; None: no limit is set."""
        return dict(sorted(self._call("GET", _project(project_id))["quota"].items()))

    def limits_without_overrides(self, project_id: str) -> dict[str, int | None]:
        """The limits that apply to a project while none of its overrides does; None: no limit is set."""
        defaults = self._call("GET", _project(project_id, "/defaults"))["quota"]
        listed = self._call("GET", "/quotas", params={"project_id": project_id})["quotas"]
        own = listed[0]["quota"] if listed else {}
        return dict(sorted({**defaults, **own}.items()))

    def default_limits(self) -> dict[str, int | None]:
        """The default limits of all projects; None: no limit is set."""
        return dict(sorted(self._call("GET", "/quota_defaults")["quota"].items()))

    def set_default_limits(self, limits: Mapping[str, int], reason: str) -> None:
        """Set default limits; those of other resources stay."""
        self._call("PUT", "/quota_defaults", json={"quota": dict(limits), **_reason(reason)})

    def overrides(self, project_id: str) -> list[Json]:
        """The overrides of a project that have not ended."""
        return list(self._call("GET", _project(project_id, "/overrides"))["overrides"])

    def add_override(
        self, project_id: str, limits: Mapping[str, int], start: str | None, until: str, reason: str
    ) -> None:
        """Set limits for a span of time. The times are in RFC 3339."""
        span = {"until": until, **({"start": start} if start else {})}
        body = {"override": {"quota": dict(limits), **span}, **_reason(reason)}
        self._call("POST", _project(project_id, "/overrides"), json=body)

    def cancel_override(self, project_id: str, override_id: str, reason: str) -> None:
        """Cancel an override."""
        path = _project(project_id, f"/overrides/{urllib.parse.quote(override_id, safe='')}")
        self._call("DELETE", path, params=_reason(reason))

    def history(self, project_id: str, limit: int, marker: str | None) -> tuple[list[Json], bool]:
        """A page of the changes of the limits, newest first, and whether there are more."""
        return self._page("history", _project(project_id, "/history"), limit, marker)

    def tree(self, project_id: str, limit: int, marker: str | None) -> tuple[list[Json], bool]:
        """A page of the project and the projects below it, and whether there are more."""
        return self._page("tree", _project(project_id, "/tree"), limit, marker)

    def in_flight(self, project_id: str, limit: int, marker: str | None) -> tuple[list[Json], bool]:
        """A page of the reservations in flight of one project, and whether there are more."""
        return self._page(
            "reservations", "/quota_reservations", limit, marker, project_id=project_id, state="reserved"
        )

    def totals(self) -> list[Json]:
        """The total limits over all projects, and what all projects hold."""
        quota = self._call("GET", "/quota_totals")["quota"]
        return [{"resource": resource, **total} for resource, total in sorted(quota.items())]

    def capacity(self, limit: int, marker: str | None) -> tuple[list[Json], bool]:
        """A page of the inventories of the providers, and whether there are more. Marker: see capacity_marker."""
        return self._page("capacity", "/quota_capacity", limit, marker)

    def pods(self) -> list[Json]:
        """The pods, with their last measurements."""
        return list(self._call("GET", "/quota_pods")["pods"])

    def _page(
        self, name: str, path: str, limit: int, marker: str | None, **query: str
    ) -> tuple[list[Json], bool]:
        parameters = {**query, "limit": limit, **({"marker": marker} if marker else {})}
        answer = self._call("GET", path, params=parameters)
        return list(answer[name]), bool(answer.get(f"{name}_links"))

    def _call(self, method: str, path: str, **options: Any) -> Any:
        try:
            answer = self._session.request(
                self._endpoint + path, method, headers={"Accept": "application/json"}, raise_exc=False, **options
            )
        except keystone_exceptions.ClientException as error:
            raise errors.QuotaAPIError(None, _("The quota service cannot be reached.")) from error
        if answer.status_code >= 400:
            raise _error(answer)
        return answer.json() if answer.content else None


def capacity_marker(inventory: Json) -> str:
    """The marker of the page after this inventory."""
    return "/".join(urllib.parse.quote(inventory[name], safe="") for name in ("provider", "resource"))


def _project(project_id: str, part: str = "") -> str:
    return f"/quotas/{urllib.parse.quote(project_id, safe='')}{part}"


def _reason(reason: str) -> dict[str, str]:
    return {"reason": reason} if reason else {}


def _error(answer: Any) -> errors.QuotaAPIError:
    """The error of an answer, with the words of the service."""
    status = answer.status_code
    kind = errors.BY_STATUS.get(status, errors.QuotaAPIError)
    try:
        [error] = answer.json()["errors"]
        return kind(status, str(error["detail"]), error.get("request_id"))
    except (ValueError, KeyError, TypeError):
        return kind(status, _("The quota service answered HTTP %d.") % status)
