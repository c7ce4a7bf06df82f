# SPDX-License-Identifier: Apache-2.0
"""Runs commands of OpenStackClient in this process, with the REST API on a port, and without Keystone."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import os
import types
from typing import Any
from unittest import mock

from keystoneauth1 import session, token_endpoint
from openstack import exceptions as sdk
from osc_lib import exceptions
from oslo_config import cfg

import cyborg_quota
from cyborg_quota.api.deploy import Application
from cyborg_quota.conf import loading
from tests.api import server

USER = "OS_TESTS__USER"
"""The environment variable of the token with which ``main`` makes its calls (tests/api/server.py)."""


def run(
    application: Application, who: str, kind: Any, *arguments: str, unknown: Exception | None = None
) -> tuple[str, int]:
    """Run a command as a user whom Keystone does not let list projects: what is no project is sent as an id.

    Returns the output and the exit status. ``unknown``: what Keystone answers to a search for a project.
    """
    own = types.SimpleNamespace(json=lambda: {"projects": []})
    identity = types.SimpleNamespace(
        find_project=mock.Mock(side_effect=unknown or sdk.ForbiddenException()), get=lambda _path: own
    )
    out = io.StringIO()
    with server.served(application) as url:
        manager = types.SimpleNamespace(
            auth_ref=types.SimpleNamespace(project_id=who.partition("@")[2].partition(":")[0]),
            session=session.Session(auth=token_endpoint.Token(url, who)),
            sdk_connection=types.SimpleNamespace(identity=identity),
            get_endpoint_for_service_type=lambda *_arguments, **_options: url,
            region_name=None,
            interface=None,
        )
        command = kind(types.SimpleNamespace(client_manager=manager, stdout=out), None)
        status = command.run(command.get_parser("quota").parse_args([*arguments]))
    return out.getvalue(), status


def main(arguments: list[str]) -> int:
    """Run ``openstack`` with these arguments on the ledger of the configuration; returns the exit status."""
    words = len(arguments)
    points = importlib.metadata.entry_points(group="openstack.accelerator.v2")
    while not (found := points.select(name="_".join(arguments[:words]))):
        words -= 1
    [point] = found
    conf = loading.load(cfg.ConfigOpts(), [])
    with contextlib.closing(cyborg_quota.make_engine(conf)) as engine:
        application = server.make_application(conf, engine)
        try:
            out, status = run(application, os.environ[USER], point.load(), *arguments[words:])
        except exceptions.CommandError as error:
            out, status = f"{error}\n", 1
    print(out, end="")
    return status
