# SPDX-License-Identifier: Apache-2.0
"""Cyborg's API with quota under uWSGI, gunicorn and Apache, configured by the files that the documentation shows.

Each of them passes the example of cyborg.rst, "See it work".
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from tests import installing, needs
from tests.cyborgs import environment, quota
from tests.cyborgs.client import Client, call
from tests.cyborgs.service import Service, answering
from tests.cyborgs.starting import ProgramStarter, Starter
from tests.servers import machine

FILES = installing.TOP / "etc/wsgi"
PAGE = installing.TOP / "doc/source/admin/cyborg.rst"
PAGE_PROJECT = "131b7e9f8a7a4b8aab1876484861565c"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
MOD_WSGI = pathlib.Path(f"/usr/lib/apache2/modules/mod_wsgi.so-{PYTHON.removeprefix('python')}")
AS_A_USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
APACHE = """\
ServerRoot {directory}
ServerName 127.0.0.1
DefaultRuntimeDir {directory}
PidFile {directory}/apache.pid
ErrorLog {directory}/apache.log
WSGISocketPrefix {directory}/wsgi
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule wsgi_module {module}
Include {site}
"""


def page_refusal(project_id: str) -> Any:
    """The body of the 403 answer, as in the documentation, for this project."""
    [found] = re.findall(r'\{"faultcode".*?\}', PAGE.read_text(), re.DOTALL)
    return json.loads(re.sub(r"\s+", " ", found).replace(PAGE_PROJECT, project_id))


class TestWsgiServers(quota.QuotaTestCase):
    # The limit driver, its model and the default without a limit, as on the page.
    options = "[limits]\ndriver = database\nenforcement_model = strict_hierarchy\nmissing = refuse\n"

    def setUp(self) -> None:
        super().setUp()
        self.port = machine.free_port()
        self.directory = self.stack.workdir / f"wsgi-{self.port}"
        self.directory.mkdir()
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        # Like /etc/cyborg/cyborg.conf, which Cyborg finds without an option: in a snap, oslo.config reads this
        # directory too.
        self.cyborg_conf = self.directory / "etc/cyborg/cyborg.conf"
        self.cyborg_conf.parent.mkdir(parents=True)
        texts = [(self.stack.workdir / name).read_text() for name in ("cyborg.conf", "extra.conf")]
        self.cyborg_conf.write_text("".join(texts))

    def adapt(self, name: str, changes: Mapping[str, str], port: int = 6666) -> pathlib.Path:
        """Return the documented file with the test's own paths and port.

        Every text that is replaced must occur in it.
        """
        text = (FILES / name).read_text()
        replacements = {f"127.0.0.1:{port}": f"127.0.0.1:{self.port}", **changes}
        for old, new in replacements.items():
            self.assertIn(old, text)
            text = text.replace(old, new)
        path = self.directory / name
        path.write_text(text)
        return path

    def serve(self, *command: str, path: str = "/", starter: Starter | ProgramStarter | None = None) -> None:
        """Start the server, and wait until it answers ``path``. ``starter``: for a program in Python."""
        ready = answering(f"http://127.0.0.1:{self.port}{path}")
        environ = {"SNAP_COMMON": str(self.directory)}
        server = Service("server", command, self.directory, ready, environ, starter=starter or ProgramStarter())
        self.addCleanup(server.kill)
        server.start()

    def walk_through(self) -> None:
        """Five of six binds succeed, the sixth is refused with 403, and succeeds after a delete."""
        client = Client(f"http://127.0.0.1:{self.port}", self.project_id)
        self.set_limit(5)
        arqs = client.created(self.new_profile({"resources:FPGA": "5"}))
        self.assertEqual(202, client.bind(arqs, str(uuid.uuid4()), self.rp).status)
        [sixth], instance = client.created(self.profile), str(uuid.uuid4())
        refused = client.bind([sixth], instance, self.rp)
        self.assertEqual(403, refused.status)
        expected = page_refusal(self.project_id)
        self.assertEqual(expected, json.loads(refused.body["error_message"]))
        self.assertEqual(204, client.delete(arqs[:1]).status)
        # Released by the server: Cyborg deletes in the API's process.
        self.assertEqual((4, 0), self.figures())
        self.assertEqual(202, client.bind([sixth], instance, self.rp).status)
        output = self.command("show", "--usage", self.project_id, "-f", "csv")
        self.assertIn(f'"{self.project_id}","fpga",5,5,0,0', output.out)
        self.assert_agree()

    def test_uwsgi(self) -> None:
        changes = {"processes = 4": "processes = 1", "/opt/cyborg/venv": str(environment.DIRECTORY / "env")}
        path = self.adapt("cyborg-api-uwsgi.ini", changes)
        self.serve(str(self.stack.programs / "uwsgi"), "--ini", str(path))
        self.walk_through()

    def test_uwsgi_with_the_rest_api_alone(self) -> None:
        """It is served, and asks for a token. (tests/integration has it with a real Keystone.)"""
        conf = self.directory / "cyborg_quota.conf"
        keystone = "auth_type = password\nauth_url = http://127.0.0.1:9/\nwww_authenticate_uri = http://127.0.0.1:9/\n"
        conf.write_text(f"{self.conf_file.read_text()}\n[keystone_authtoken]\n{keystone}")
        changes = {
            "processes = 2": "processes = 1",
            "/opt/cyborg/venv": str(environment.DIRECTORY / "env"),
            "/etc/cyborg_quota/cyborg_quota.conf": str(conf),
        }
        path = self.adapt("cyborg-quota-api-uwsgi.ini", changes, port=6667)
        self.serve(str(self.stack.programs / "uwsgi"), "--ini", str(path), path="/healthcheck")
        answer = call(f"http://127.0.0.1:{self.port}", "GET", f"/v2/quotas/{self.project_id}")
        self.assertEqual((401, "cyborg_quota.unauthorized"), (answer.status, answer.body["errors"][0]["code"]))

    def test_gunicorn(self) -> None:
        changes = {"workers = 4": "workers = 1", "/etc/cyborg/cyborg.conf": str(self.cyborg_conf)}
        path = self.adapt("cyborg-api-gunicorn.py", changes)
        self.serve(str(self.stack.programs / "gunicorn"), "--config", str(path), starter=self.stack.starter)
        self.walk_through()

    def test_apache(self) -> None:
        if not MOD_WSGI.exists():
            if any(MOD_WSGI.parent.glob("mod_wsgi.so-*")):
                self.skipTest(f"Apache's mod_wsgi was built for another Python than {PYTHON}")
            needs.missing(self, "Apache's mod_wsgi is not installed (bindep.txt names the packages)")
        changes = {
            "lib/python3.11/": f"lib/{PYTHON}/",
            "/opt/cyborg/venv": str(self.system_environment()),
            "/var/log/apache2/cyborg-api.log": f"{self.directory}/server.log",
            "processes=4": "processes=1",
            # Everything runs as one user here, who is not root.
            "user=cyborg group=cyborg": f"home={self.directory}",
        }
        site = self.adapt("cyborg-api-apache.conf", changes)
        main = self.directory / "apache.conf"
        main.write_text(APACHE.format(directory=self.directory, site=site, module=MOD_WSGI, modules=MOD_WSGI.parent))
        command = [machine.find("apache2"), "-D", "FOREGROUND", "-f", str(main)]
        # (Another user has no death signal of this process: the one before it is lost.)
        self.serve(*self.unprivileged(), *machine.ends_with_parent(command))
        self.walk_through()

    def system_environment(self) -> pathlib.Path:
        """Make Cyborg's environment with the system's Python.

        mod_wsgi has the system's libpython, which may not load the standard library of another build.
        """
        workdir = self.directory / "venv"
        packages = workdir / f"lib/{PYTHON}/site-packages"
        packages.parent.mkdir(parents=True)
        packages.symlink_to(environment.DIRECTORY / f"env/lib/{PYTHON}/site-packages")
        (workdir / "bin").mkdir()
        (workdir / "bin/python3").symlink_to(f"/usr/bin/{PYTHON}")
        (workdir / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
        return workdir

    def unprivileged(self) -> Sequence[str]:
        """Return a command prefix that runs a command as another user than root, with access to all files.

        mod_wsgi refuses to run as root.
        """
        if os.geteuid() != 0:
            return ()
        if subprocess.run([*AS_A_USER, "true"], check=False, capture_output=True).returncode != 0:
            self.skipTest("mod_wsgi does not run as root, and this machine has no user namespaces")
        return AS_A_USER
