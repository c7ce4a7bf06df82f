# SPDX-License-Identifier: Apache-2.0
"""Generates the OpenAPI 3.1 document from the table of operations and the schemas.

python -m cyborg_quota.api.openapi > cyborg_quota/api/openapi.yaml
"""

from __future__ import annotations

import http
import pathlib
import re
import sys
from typing import Any, Final

import yaml

from cyborg_quota.api import schemas
from cyborg_quota.api.microversions import HEADER, SERVICE_TYPE, VersionRange
from cyborg_quota.api.operations import OPERATIONS, Operation
from cyborg_quota.types import MAX_NAME_CHARS

FILE: Final = pathlib.Path(__file__).with_name("openapi.yaml")
_OF_PATH: Final = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS, "pattern": "^[^/]+$"}
_DESCRIPTIONS: Final = {
    400: "The request is invalid.",
    401: "The token is missing or invalid.",
    403: "The policy does not allow the call.",
    404: "There is no such object, or the caller may not see it.",
    406: "The microversion is not supported.",
    409: "The limits, the project tree, their source or the filters do not permit the call.",
    412: "The limits were changed after they were read: If-Match has another generation.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    500: "An internal error.",
    503: "The database or the source of the limits is unavailable.",
}


def document() -> dict[str, Any]:
    """The OpenAPI document of all operations."""
    microversion = {
        "name": HEADER,
        "in": "header",
        "required": False,
        "description": "The microversion. All calls are the same in all versions.",
        "schema": {"type": "string", "pattern": f"^{SERVICE_TYPE} (2\\.[0-{VersionRange().maximum[-1]}]|latest)$"},
    }
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Quota of OpenStack Cyborg",
            "version": "2.0",
            "description": "Quota of accelerators, at the endpoint of Cyborg (service type accelerator).",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.COMPONENTS,
            "parameters": {"microversion": microversion},
            "responses": {_error_name(status): _error(status) for status in _DESCRIPTIONS},
            "securitySchemes": {"token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"}},
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _OF_PATH}
        for name in re.findall(r"\{(\w+)\}", operation.path)
    ]
    parameters += [
        {"name": name, "in": "query", "required": False, "schema": schema} for name, schema in operation.query.items()
    ]
    parameters.append({"$ref": "#/components/parameters/microversion"})
    success: dict[str, Any] = {"description": http.HTTPStatus(operation.status).phrase}
    if operation.answer is not None:
        success["content"] = _json(operation.answer)
    errors = {
        str(status): {"$ref": f"#/components/responses/{_error_name(status)}"} for status in sorted(statuses(operation))
    }
    definition: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {str(operation.status): success, **errors},
    }
    if operation.rule is not None:
        definition["x-openstack-policy"] = operation.rule
    if operation.body is not None:
        definition["requestBody"] = {"required": True, "content": _json(operation.body)}
    return definition


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": schemas.ref(name)}}


def _error_name(status: int) -> str:
    return re.sub(r"\W", "", http.HTTPStatus(status).phrase.title())


def _error(status: int) -> dict[str, Any]:
    response: dict[str, Any] = {"description": _DESCRIPTIONS[status], "content": _json("Errors")}
    if status == 503:
        seconds = {"type": "integer", "minimum": 1}
        response["headers"] = {"Retry-After": {"description": "Seconds.", "schema": seconds}}
    return response


def statuses(operation: Operation) -> set[int]:
    """The statuses of the errors that the operation may answer."""
    # (A user who may not see the project of a call gets 404.)
    of_project = {404} if "{project_id}" in operation.path else set()
    of_body = {413, 415} if operation.body else set()
    return {400, 401, 403, 406, 500, 503, *operation.errors, *of_project, *of_body}


class _Dumper(yaml.SafeDumper):
    """Writes every occurrence of a shared object in full."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def text() -> str:
    """The document as YAML."""
    head = "# Generated: python -m cyborg_quota.api.openapi > cyborg_quota/api/openapi.yaml\n"
    return head + yaml.dump(document(), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


if __name__ == "__main__":
    sys.stdout.write(text())
