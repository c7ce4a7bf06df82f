# SPDX-License-Identifier: Apache-2.0
"""The microversion header. It is Cyborg's: ``OpenStack-API-Version: accelerator 2.3``. All calls exist in all versions.

See https://specs.openstack.org/openstack/api-sig/guidelines/microversion_specification.html.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import falcon
import microversion_parse

from cyborg_quota.api.errors import Refused

SERVICE_TYPE: Final = "accelerator"
HEADER: Final = "OpenStack-API-Version"


class VersionRange(NamedTuple):
    """The microversions that the API accepts. The defaults are those of Cyborg 17."""

    minimum: str = "2.0"
    maximum: str = "2.3"

    def negotiate(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Set the headers of the answer. Raises Refused (406) if the requested version is not supported."""
        resp.set_headers(
            {
                "Vary": HEADER,
                "OpenStack-API-Minimum-Version": self.minimum,
                "OpenStack-API-Maximum-Version": self.maximum,
            }
        )
        # As in Cyborg: without the header, the lowest version; the service type may be left out.
        header = req.get_header(HEADER)
        named = header and microversion_parse.get_version({HEADER: header}, SERVICE_TYPE)
        requested = self.minimum if header is None else named or header.strip()
        try:
            version = microversion_parse.parse_version_string(
                self.maximum if requested.lower() == "latest" else requested
            )
        except TypeError:
            version = None
        lowest, highest = map(microversion_parse.parse_version_string, (self.minimum, self.maximum))
        if version is None or not version.matches(lowest, highest):
            raise Refused(
                406,
                f"{HEADER} must be a version from {self.minimum} to {self.maximum}, as in {SERVICE_TYPE} "
                f"{self.maximum}.",
                max_version=self.maximum,
                min_version=self.minimum,
            )
        resp.set_header(HEADER, f"{SERVICE_TYPE} {version}")


def make_discovery() -> Callable[..., Any]:
    """The version documents at ``/`` and ``/v2``, which need no token."""
    app = falcon.App()
    for path in ("/", "/v2", "/v2/"):
        app.add_route(path, types.SimpleNamespace(on_get=_discover, on_head=_discover))
    return app


def _discover(req: falcon.Request, resp: falcon.Response) -> None:
    """See https://specs.openstack.org/openstack/api-sig/guidelines/consuming-catalog/version-discovery.html."""
    versions = VersionRange()
    version = {
        "id": "v2.0",
        "status": "CURRENT",
        "min_version": versions.minimum,
        "max_version": versions.maximum,
        "links": [{"rel": "self", "href": f"{req.prefix}/v2/"}],
    }
    resp.media = {"versions": [version]} if req.path == "/" else {"version": version}
