# SPDX-License-Identifier: Apache-2.0
"""The configuration files of the services: each authenticates to Keystone as one user, ``services``."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

USER = "services"
PROJECT = "service"
REGION = "RegionOne"

AUTH = """\
auth_type = password
auth_url = {keystone}
username = {user}
password = {password}
project_name = {project}
user_domain_id = default
project_domain_id = default
region_name = {region}
"""
TOKENS = """\
[keystone_authtoken]
www_authenticate_uri = {keystone}
service_token_roles = service
service_token_roles_required = true
interface = public
{auth}
"""
SERVICE_USER = """\
[service_user]
send_service_user_token = true
{auth}
"""
PLACEMENT = """\
[placement_database]
connection = {placement_database}
sync_on_startup = true
[oslo_policy]
enforce_scope = false
"""
GLANCE = """\
[DEFAULT]
enabled_backends = store:file
# Its address of itself, for a cluster of several.
worker_self_reference_url = {glance}
[database]
connection = {glance_database}
[glance_store]
default_backend = store
[store]
filesystem_store_datadir = {workdir}/images
[os_glance_staging_store]
filesystem_store_datadir = {workdir}/staging
[os_glance_tasks_store]
filesystem_store_datadir = {workdir}/tasks
[paste_deploy]
flavor = keystone
config_file = {etc}/glance/glance-api-paste.ini
"""
NEUTRON = """\
[DEFAULT]
transport_url = {bus}
state_path = {workdir}
core_plugin = ml2
# Without its models, Neutron cannot list ports.
service_plugins = router
api_paste_config = {etc}/neutron/api-paste.ini
notify_nova_on_port_status_changes = false
notify_nova_on_port_data_changes = false
[database]
connection = {neutron_database}
[ml2]
type_drivers = local
tenant_network_types = local
mechanism_drivers =
[oslo_concurrency]
lock_path = {workdir}/locks
"""
NOVA = """\
[DEFAULT]
transport_url = {bus}
my_ip = 127.0.0.1
state_path = {workdir}
compute_driver = fake.FakeDriver
# A dead host is seen after six seconds, not after a minute.
report_interval = 2
service_down_time = 6
rpc_response_timeout = 30
shelved_offload_time = 0
[api_database]
connection = {nova_api_database}
[database]
connection = {nova_database}
[scheduler]
workers = 1
[conductor]
workers = 1
[vnc]
enabled = false
[oslo_concurrency]
lock_path = {workdir}/locks
[glance]
{auth}
[neutron]
{auth}
[placement]
{auth}
[cyborg]
{auth}
"""
CYBORG = """\
[DEFAULT]
transport_url = {bus}
state_path = {workdir}
graceful_shutdown_timeout = 5
[api]
api_paste_config = {etc}/cyborg/api-paste.ini
[database]
connection = {cyborg_database}
[nova]
{auth}
[placement]
{auth}
[oslo_concurrency]
lock_path = {workdir}/locks
[cyborg_quota]
config_file = {quota}
"""
HOST = """\
[DEFAULT]
host = {host}
state_path = {workdir}/{host}
"""
AGENT = """\
[agent]
resource_provider_name = {host}
"""
TYPES = {"nova": "compute", "glance": "image", "neutron": "network", "placement": "placement", "cyborg": "accelerator"}
"""{service: its type in Keystone's catalogue}"""


def write(workdir: pathlib.Path, etc: pathlib.Path, password: str, urls: Mapping[str, str]) -> None:
    """Write one file for each service, named after it; those of Glance and Nova where these look for them.

    :param etc: the directory of the files that the services install.
    :param password: of the user USER.
    :param urls: of Keystone, databases and services, by the names in the templates.
    """
    values = {name: value.replace("$", "$$") for name, value in urls.items()}
    values |= {"workdir": str(workdir), "etc": str(etc), "password": password}
    values["auth"] = AUTH.format(user=USER, project=PROJECT, region=REGION, **values)
    texts = {"nova": NOVA, "glance-api": GLANCE, "neutron": NEUTRON, "placement": PLACEMENT, "cyborg": CYBORG}
    for name, text in texts.items():
        path = workdir / f"{name}.conf"
        path.touch(mode=0o600)
        path.write_text((text + TOKENS + SERVICE_USER).format(**values))
    (workdir / "api-paste.ini").write_text((etc / "nova/api-paste.ini").read_text())
    for directory in ("images", "staging", "tasks"):
        (workdir / directory).mkdir()


def write_host(workdir: pathlib.Path, host: str) -> None:
    """Write HOST.conf for nova-compute, and agent-HOST.conf for Cyborg's agent."""
    (workdir / host).mkdir()
    (workdir / f"{host}.conf").write_text(HOST.format(host=host, workdir=workdir))
    (workdir / f"agent-{host}.conf").write_text(HOST.format(host=host, workdir=workdir) + AGENT.format(host=host))
