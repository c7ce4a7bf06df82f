# SPDX-License-Identifier: Apache-2.0
"""The REST API on a port of 127.0.0.1, with tokens that name their user: ``user@project:role,role``."""

from __future__ import annotations

import contextlib
import itertools
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref import simple_server

import jsonschema
import webob
from oslo_config import cfg

import cyborg_quota
from cyborg_quota import QuotaEngine
from cyborg_quota.api import deploy, schemas
from cyborg_quota.api.deploy import Application
from cyborg_quota.types import Claim
from cyborg_quota.types.capacity import ResourceUse
from tests import base, fixtures

ADMIN = "alice@cloud:admin,member,reader"
TREE = {
    "physics": None,
    "higgs": "physics",
    "simulation": "physics",
    "detector": "higgs",
    "elsewhere": None,
}
"""The project tree of the tests."""


class NamedTokens:
    """Middleware in the place of keystonemiddleware, for tests only: it accepts every token."""

    def __init__(self, application: Application) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        for name in [name for name in environ if name.startswith(("HTTP_X_IDENTITY", "HTTP_X_USER", "HTTP_X_ROLES"))]:
            del environ[name]
        user, _, rest = environ.get("HTTP_X_AUTH_TOKEN", "").partition("@")
        project_id, _, roles = rest.partition(":")
        environ["keystone.token_auth"] = None
        environ["HTTP_X_IDENTITY_STATUS"] = "Confirmed" if user else "Invalid"
        environ |= {"HTTP_X_USER_ID": user, "HTTP_X_ROLES": roles}
        scopes = {"system": {"HTTP_OPENSTACK_SYSTEM_SCOPE": "all"}, "domain": {"HTTP_X_DOMAIN_ID": "default"}}
        environ |= scopes.get(project_id, {"HTTP_X_PROJECT_ID": project_id})
        return self._application(environ, start_response)


def settings(url: str, **options: Any) -> cfg.ConfigOpts:
    """A configuration with limits in the ledger. ``options``: group__name=value."""
    defaults = {
        "database__connection": url,
        "limits__driver": "database",
        "limits__enforcement_model": "strict_hierarchy",
    }
    return fixtures.configuration(**{**defaults, **options})


def make_application(conf: cfg.ConfigOpts, engine: QuotaEngine, **options: Any) -> Application:
    """``options``: of deploy.make_bare_application."""
    return deploy.wrap(NamedTokens(deploy.make_bare_application(conf, engine, **options)), conf)


class _Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True
    request_queue_size = 64


class _Handler(simple_server.WSGIRequestHandler):
    def log_message(self, *_args: Any) -> None:
        """Log nothing."""


@contextlib.contextmanager
def served(application: Application) -> Iterator[str]:
    """Serve the application; yields its URL."""
    server = simple_server.make_server("127.0.0.1", 0, application, _Server, _Handler)  # type: ignore[arg-type]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class ApiTestCase(base.LedgerTestCase):
    """``application`` with a small cloud: the default of gpu is 0, physics has 30, higgs 20, simulation 5, elsewhere 4.

    higgs has 5 gpu in use and 1 reserved, detector 2 in use.
    """

    options: dict[str, Any] = {}

    def setUp(self) -> None:
        super().setUp()
        self.conf = settings(self.url, **self.options)
        self.engine = self.deploy_engine()
        self.quotas = fixtures.Checked(self.engine, self.url)  # type: ignore[assignment]
        self.application = make_application(self.conf, self.engine)
        self.make_cloud()

    def deploy_engine(self) -> QuotaEngine:
        """Make an engine of the configuration."""
        engine = cyborg_quota.make_engine(self.conf)
        self.addCleanup(engine.close)
        return engine

    def make_cloud(self) -> None:
        admin = self.engine.limits
        admin.set_limits(base.ADMIN, {"gpu": 0, "fpga": 0})
        for project_id, parent_id in TREE.items():
            admin.add_project(base.ADMIN, project_id, parent_id)
        for project_id, limit in (("physics", 30), ("higgs", 20), ("simulation", 5), ("detector", 2), ("elsewhere", 4)):
            admin.set_limit(base.ADMIN, "gpu", limit, project_id, reason="for the tests")
        for project_id, amount in (("higgs", 5), ("detector", 2), ("elsewhere", 1)):
            context = base.Context(project_id)
            self.quotas.reserve_many(context, [Claim(f"arq-{project_id}", {"gpu": amount})], group=f"vm-{project_id}")
            self.quotas.commit(context, consumer=f"arq-{project_id}")
        self.quotas.reserve(base.Context("higgs"), {"gpu": 1}, consumer="arq-in-flight")

    def ask(self, path: str, token: str = ADMIN, method: str = "GET", **options: Any) -> webob.Response:
        """The answer to a request. ``options``: of webob."""
        headers = {"X-Auth-Token": token, **options.pop("headers", {})}
        request = webob.Request.blank(path, method=method, headers=headers, **options)
        return request.get_response(self.application)

    def call(self, path: str, token: str = ADMIN, method: str = "GET", body: Any = None, status: int = 200) -> Any:
        """Make a call, whose answer must have this status. Returns its body."""
        response = self.ask(path, token, method, json=body)
        self.assertEqual(status, response.status_int, response.text)
        return response.json if response.text else None

    def assert_agrees(self, component: str, answer: Any) -> None:
        """An answer agrees with a schema of the OpenAPI document."""
        jsonschema.validate(answer, {**schemas.ref(component), "components": {"schemas": schemas.COMPONENTS}})

    def pages(self, path: str, member: str, token: str = ADMIN) -> Iterator[list[Any]]:
        """The entries of each page of a list, to which its links lead."""
        while path:
            answer = self.call(path, token)
            yield answer[member]
            path = next((link["href"] for link in answer.get(f"{member}_links", ())), "")

    def whole(self, path: str, member: str, token: str = ADMIN) -> list[Any]:
        """The entries of all pages of a list."""
        return list(itertools.chain.from_iterable(self.pages(path, member, token)))

    def make_pod(self) -> None:
        """The pod north in the zone az1, which has 8 gpu, of which 3 are used."""
        self.engine.pods.add(base.ADMIN, "north", zone="az1", threshold=90)
        self.engine.pods.set_usage(base.ADMIN, "north", {"gpu": ResourceUse(8, 3)})
