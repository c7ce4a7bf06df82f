# SPDX-License-Identifier: Apache-2.0
"""The names of projects, from Keystone."""

from __future__ import annotations

from typing import Any

from openstack_dashboard import api

from cyborg_quota.horizon import client, rows


def names(request: Any) -> dict[str, str]:
    """The name of each project that the user may list, by id."""
    found, _more = api.keystone.tenant_list(request)
    return {one.id: one.name for one in found}


def name(request: Any, project_id: str) -> str:
    """The name of a project; its id if Keystone does not have it any more."""
    found = client.attempt(request, lambda: api.keystone.tenant_get(request, project_id).name, None)
    return str(found or project_id)


def with_names(request: Any, text: str) -> str:
    """A message of the service, with the names of projects in the place of their ids."""
    return str(client.attempt(request, lambda: rows.replace_words(text, names(request)), None) or text)
