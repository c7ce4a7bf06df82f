# SPDX-License-Identifier: Apache-2.0
"""Apache and nginx with the documented files, on a port of 127.0.0.1: one endpoint for two services."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
from collections.abc import Mapping
from typing import Final

import fixtures as fx

from tests import installing
from tests.servers import machine

FILES: Final = installing.TOP / "etc/wsgi"
MODULES: Final = pathlib.Path("/usr/lib/apache2/modules")
QUOTA, CYBORG = "127.0.0.1:6667", "127.0.0.1:6666"
"""The addresses of the two services in the files."""

START_TIMEOUT_SECONDS = 30.0

NGINX = """\
{user}
daemon off;
worker_processes 1;
pid {directory}/pid;
error_log {directory}/log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen 127.0.0.1:{port};
        include {directory}/site.conf;
    }}
}}
"""
APACHE = """\
ServerName 127.0.0.1
Listen 127.0.0.1:{port}
ErrorLog {directory}/log
PidFile {directory}/pid
DefaultRuntimeDir {directory}
{modules}
<VirtualHost 127.0.0.1:{port}>
    Include {directory}/site.conf
</VirtualHost>
"""
APACHE_MODULES = ("mpm_event", "proxy", "proxy_http", "headers", "authz_core")
NAMES: Final = ("apache", "nginx")


class Proxy(fx.Fixture):
    """A running proxy, ``apache`` or ``nginx``, and its ``url``. Raises ServerError if it is not installed.

    ``quota_url`` and ``cyborg_url`` are the services behind it.
    """

    def __init__(self, name: str, quota_url: str, cyborg_url: str) -> None:
        super().__init__()
        self._name = name
        self._services = {QUOTA: quota_url.removeprefix("http://"), CYBORG: cyborg_url.removeprefix("http://")}

    def _setUp(self) -> None:
        port = machine.free_port()
        directory = pathlib.Path(self.useFixture(fx.TempDir()).path)
        (directory / "site.conf").write_text(included(self._name, self._services))
        command = _nginx(directory, port) if self._name == "nginx" else _apache(directory, port)
        process = subprocess.Popen(machine.ends_with_parent(command), stdin=subprocess.DEVNULL)
        self.addCleanup(process.wait, START_TIMEOUT_SECONDS)
        self.addCleanup(process.terminate)
        machine.wait_until(lambda: _is_open(port) or process.poll() is not None, START_TIMEOUT_SECONDS)
        log = directory / "log"
        assert process.poll() is None, log.read_text()[-2000:] if log.exists() else "it has written no log"
        self.url = f"http://127.0.0.1:{port}"


def included(name: str, services: Mapping[str, str] | None = None) -> str:
    """The documented lines. ``services``: the addresses that replace those in it."""
    text = (FILES / f"cyborg-quota-api-{name}.conf").read_text()
    for documented, address in (services or {}).items():
        assert documented in text, documented
        text = text.replace(documented, address)
    return text


def _nginx(directory: pathlib.Path, port: int) -> list[str]:
    # As root, its workers would have another user, who cannot use the directory.
    user = "user root;" if os.geteuid() == 0 else ""
    (directory / "nginx.conf").write_text(NGINX.format(directory=directory, port=port, user=user))
    return [machine.find("nginx"), "-e", str(directory / "log"), "-c", str(directory / "nginx.conf")]


def _apache(directory: pathlib.Path, port: int) -> list[str]:
    if not MODULES.is_dir():
        raise machine.ServerError("Apache is not installed (bindep.txt names the packages)")
    modules = "\n".join(f"LoadModule {name}_module {MODULES}/mod_{name}.so" for name in APACHE_MODULES)
    (directory / "apache.conf").write_text(APACHE.format(directory=directory, port=port, modules=modules))
    # Apache does not serve as root.
    as_a_user = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []
    return [*as_a_user, machine.find("apache2"), "-D", "FOREGROUND", "-f", str(directory / "apache.conf")]


def _is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
