# SPDX-License-Identifier: Apache-2.0
"""The configuration files of the stack's services."""

from __future__ import annotations

import pathlib

PASTE = """\
[pipeline:main]
# Without authtoken: a client sends the headers that it would set.
pipeline = request_id api_v2
[app:api_v2]
paste.app_factory = cyborg.api.app:app_factory
[filter:request_id]
paste.filter_factory = oslo_middleware:RequestId.factory
"""
PLACEMENT = """\
[api]
auth_strategy = noauth2
[placement_database]
connection = sqlite:///{workdir}/placement.sqlite
sync_on_startup = true
"""
CYBORG = """\
[DEFAULT]
transport_url = {bus}
state_path = {workdir}
# A worker whose parent was killed stops in good order; without a bus that takes all the time that it is given.
graceful_shutdown_timeout = 5
[api]
api_paste_config = {workdir}/api-paste.ini
[database]
connection = {database}
[nova]
auth_type = none
endpoint_override = {nova}
[oslo_concurrency]
lock_path = {workdir}/locks
[placement]
auth_type = admin_token
token = admin
endpoint = {placement}
endpoint_override = {placement}
"""
HOST = """\
[DEFAULT]
host = {host}
[agent]
resource_provider_name = {host}
"""


def write(workdir: pathlib.Path, **urls: str) -> None:
    """Write cyborg.conf, placement.conf and api-paste.ini. ``urls``: bus, database, nova, placement."""
    (workdir / "api-paste.ini").write_text(PASTE)
    (workdir / "placement.conf").write_text(PLACEMENT.format(workdir=workdir))
    values = {name: value.replace("$", "$$") for name, value in urls.items()}
    (workdir / "cyborg.conf").write_text(CYBORG.format(workdir=workdir, **values))


def write_host(workdir: pathlib.Path, host: str) -> None:
    """Write HOST.conf, which the processes of that host read too."""
    (workdir / f"{host}.conf").write_text(HOST.format(host=host))
