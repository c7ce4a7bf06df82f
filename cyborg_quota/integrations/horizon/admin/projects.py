# SPDX-License-Identifier: Apache-2.0
"""The names of projects, from Keystone."""

from __future__ import annotations

from typing import Any

from horizon import exceptions
from openstack_dashboard import api

from cyborg_quota.integrations.horizon import rows


def names(request: Any) -> dict[str, str]:
    """The name of each project that the user may list, by id."""
    found, _more = api.keystone.tenant_list(request)
    return {one.id: one.name for one in found}


def name(request: Any, project_id: str) -> str:
    """The name of a project; its id if Keystone does not have it any more."""
    try:
        return str(api.keystone.tenant_get(request, project_id).name)
    except Exception:
        exceptions.handle(request, ignore=True)
    return project_id


def with_names(request: Any, text: str) -> str:
    """A message of the service, with the names of projects in the place of their ids."""
    try:
        return rows.replace_words(text, names(request))
    except Exception:
        exceptions.handle(request, ignore=True)
    return text
