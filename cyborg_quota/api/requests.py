# SPDX-License-Identifier: Apache-2.0
"""Reads the body and the parameters of a request, and validates them with the schema of the operation."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any, Final

import falcon
import jsonschema

from cyborg_quota.api import schemas
from cyborg_quota.api.errors import Refused
from cyborg_quota.surface.operations import Schema

MAX_BODY_BYTES: Final = 114_688
"""The maximum size of a body: the default of oslo.middleware's [oslo_middleware] max_request_body_size."""

_INTEGER: Final = re.compile(r"-?[0-9]{1,20}")
_MAX_SHOWN: Final = 200


def read_data(req: falcon.Request) -> bytes:
    """The bytes of the body. A slow client delays it as long as the web server allows. Raises Refused (413, 415)."""
    if (req.content_length or 0) > MAX_BODY_BYTES:
        raise Refused(413, f"The body must have at most {MAX_BODY_BYTES} bytes.")
    if (req.content_type or falcon.MEDIA_JSON).partition(";")[0].strip().lower() != falcon.MEDIA_JSON:
        raise Refused(415, f"The Content-Type must be {falcon.MEDIA_JSON}.")
    # A server that ends the input itself passes on a chunked body, of which the length is not known before.
    is_chunked = req.content_length is None and req.env.get("wsgi.input_terminated")
    data: bytes = (req.stream if is_chunked else req.bounded_stream).read(MAX_BODY_BYTES + 1)
    if len(data) > MAX_BODY_BYTES:
        raise Refused(413, f"The body must have at most {MAX_BODY_BYTES} bytes.")
    return data


def parse_body(data: bytes, name: str) -> Any:
    """The JSON body, which agrees with the schema ``name``. Raises Refused (400)."""
    try:
        body = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:  # also UnicodeDecodeError, and numbers of too many digits
        raise Refused(400, f"The body must be a JSON document: {str(error)[:_MAX_SHOWN]}.") from None
    _validate(_body_validator(name), body)
    return body


def _refuse_constant(value: str) -> Any:
    raise ValueError(f"{value} is not JSON")


def read_query(req: falcon.Request, parameters: Mapping[str, Schema]) -> dict[str, Any]:
    """The parameters of the query string. Raises Refused (400), also for a parameter that does not exist."""
    query = {name: _parsed(parameters.get(name, {}).get("type"), value) for name, value in req.params.items()}
    schema = schemas.object_of(parameters, optional=tuple(parameters))
    _validate(_validator(json.dumps(schema)), query, "query")
    return query


def _parsed(kind: Any, value: str | list[str]) -> Any:
    """A value of the query string. What is not of this kind, or given twice, stays as it is: the schema refuses it."""
    if isinstance(value, str) and kind == "boolean":
        return {"true": True, "false": False}.get(value.lower(), value)
    return int(value) if isinstance(value, str) and kind == "integer" and _INTEGER.fullmatch(value) else value


def _validate(validator: Any, value: Any, where: str = "body") -> None:
    try:
        error = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except RecursionError:
        raise Refused(400, "The body is nested too deeply.") from None
    if error is not None:
        position = ".".join(map(str, error.absolute_path)) or where
        message = error.message  # it repeats the whole invalid value
        shown = message if len(message) <= _MAX_SHOWN else f"{message[:80]} ... {message[-100:]}"
        raise Refused(400, f"Invalid {position[:_MAX_SHOWN]}: {shown}.")


_Validator: Final[Any] = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator, {"pattern": lambda _validator, _pattern, _instance, _schema: ()}
)
"""Leaves out the patterns: the engine checks the same, and its errors say in words what is wrong."""


@functools.cache
def _body_validator(name: str) -> Any:
    schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas.COMPONENTS}}
    return _Validator(schema)


@functools.cache
def _validator(schema: str) -> Any:
    return _Validator(json.loads(schema))
