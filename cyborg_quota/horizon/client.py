# SPDX-License-Identifier: Apache-2.0
"""The REST API of quota, with the token and the service catalog of the user who is logged in."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from horizon import exceptions as horizon_exceptions
from keystoneauth1 import exceptions as keystone_exceptions
from keystoneauth1 import session, token_endpoint
from openstack_auth import utils as auth_utils
from openstack_dashboard import api
from openstack_dashboard.api import base

from cyborg_quota.horizon import rows

SERVICE_TYPE: Final = "accelerator"
TIMEOUT_SECONDS: Final = 30.0
_VERSION: Final = "/v2"
_ATTRIBUTE: Final = "_cyborg_quota_client"
_READ_ONLY: Final = "_cyborg_quota_read_only"
DEFAULTS: Final = "/quota_defaults"
PROJECT: Final = "/quotas/{project_id}"
IN_FLIGHT: Final = "/quota_reservations?state=reserved&project_id={project_id}"
"""The project is named: without it, an admin would get the reservations of all projects."""
NOT_RETRIEVED: Final = gettext_lazy("Unable to retrieve the accelerator quota: %(exc)s")

Json = dict[str, Any]


def of(request: Any) -> QuotaClient:
    """The client of a request of Horizon. All calls of one request share its connection."""
    if not hasattr(request, _ATTRIBUTE):
        setattr(request, _ATTRIBUTE, QuotaClient(request))
    client: QuotaClient = getattr(request, _ATTRIBUTE)
    return client


def attempt(request: Any, load: Callable[[], Any], message: Any = NOT_RETRIEVED) -> Any:
    """The result of ``load``; None if the service refuses, with a message unless that is None."""
    try:
        return load()
    except Exception:
        horizon_exceptions.handle(request, message, ignore=message is None)
    return None


def read_only(request: Any) -> str | None:
    """Where limits are set, if the service does not set them; None if it does, or does not answer."""
    if not hasattr(request, _READ_ONLY):
        ids = {"project_id": request.user.project_id}
        detail = attempt(request, lambda: of(request).call("GET", f"{PROJECT}/detail", ids), None) or {}
        setattr(request, _READ_ONLY, detail.get("read_only"))
    return getattr(request, _READ_ONLY)  # type: ignore[no-any-return]


class QuotaClient:
    """Calls of the REST API. Each raises QuotaAPIError.

    ``path`` is below the version. ``ids``: what replaces the names in it, such as ``{project_id}``.
    """

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

    def quota(self, path: str, ids: Mapping[str, str] | None = None, **query: str) -> Json:
        """What the service says of each resource, by resource, on all pages. A limit is None if none is set."""
        answer = self.call("GET", path, ids, params=query)
        for link in answer.get("quota_links", ()):
            following = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(link["href"]).query))
            answer["quota"].update(self.quota(path, ids, **following))
        return dict(sorted(answer["quota"].items()))

    def usage(self, project_id: str) -> list[rows.Row]:
        """The limit, the usage and the headroom of each resource."""
        quota = self.quota(f"{PROJECT}/detail", {"project_id": project_id})
        return [rows.usage(resource, detail) for resource, detail in quota.items()]

    def listed(
        self, name: str, path: str, ids: Mapping[str, str], limit: int | None = None, marker: str | None = None
    ) -> tuple[list[Json], bool]:
        """A list, or a page of ``limit`` rows after the marker; and whether there are more."""
        query = {key: value for key, value in (("limit", limit), ("marker", marker)) if value}
        answer = self.call("GET", path, ids, params=query)
        return list(answer[name]), bool(answer.get(f"{name}_links"))

    def change(self, method: str, path: str, ids: Mapping[str, str], **changes: Any) -> list[str]:
        """Change limits; returns the warnings. What is empty or false is not sent."""
        given = {name: value for name, value in changes.items() if value}
        answer = self.call(method, path, ids, **{"params" if method == "DELETE" else "json": given})
        return list((answer or {}).get("warnings", ()))

    def call(self, method: str, path: str, ids: Mapping[str, str] | None = None, **options: Any) -> Any:
        """Make a call; returns the answer. ``options``: as for a request of keystoneauth."""
        quoted = {name: urllib.parse.quote(value, safe="") for name, value in (ids or {}).items()}
        url = self._endpoint + path.format(**quoted)
        try:
            answer = self._session.request(
                url, method, headers={"Accept": "application/json"}, raise_exc=False, **options
            )
        except keystone_exceptions.ClientException as error:
            raise rows.QuotaAPIError(_("The quota service cannot be reached.")) from error
        if answer.status_code >= 400:
            raise _error(answer)
        return answer.json() if answer.content else None


def marker_of(*names: str) -> Callable[[Json], str]:
    """What makes the marker of the page after a row, from these values of it."""
    return lambda row: "/".join(urllib.parse.quote(row[name], safe="") for name in names)


def _error(answer: Any) -> rows.QuotaAPIError:
    """The error of an answer, with the words of the service."""
    status = answer.status_code
    kind = rows.BY_STATUS.get(status, rows.QuotaAPIError)
    try:
        [error] = answer.json()["errors"]
        return kind(str(error["detail"]), error.get("request_id"))
    except (ValueError, KeyError, TypeError):
        if status == 404:  # (the API of quota always explains a 404)
            return kind(_("This Cyborg serves no quota API."))
        return kind(_("The quota service answered HTTP %d.") % status)


def project_names(request: Any) -> dict[str, str]:
    """The name of each project that the user may list, by id."""
    projects, _more = api.keystone.tenant_list(request)
    return {project.id: project.name for project in projects}


def domains(request: Any) -> dict[str, str]:
    """The name of the domain of each project that the user may list, by the id of the project."""
    names = {
        domain.id: domain.name for domain in attempt(request, lambda: api.keystone.domain_list(request), None) or ()
    }
    projects, _more = api.keystone.tenant_list(request)
    return {project.id: names.get(project.domain_id, project.domain_id) for project in projects}


def name_of(request: Any, get: Callable[[Any, str], Any], key: str) -> str:
    """The name of a project or of a user, which ``get`` returns; its id if Keystone does not have it any more."""
    return str(attempt(request, lambda: get(request, key).name, None) or key)


def with_names(request: Any, text: str) -> str:
    """A message of the service, with the names of projects in the place of their ids."""
    return str(attempt(request, lambda: rows.replace_words(text, project_names(request)), None) or text)
