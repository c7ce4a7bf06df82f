# SPDX-License-Identifier: Apache-2.0
"""``.. openapi:: FILE``: the calls of an OpenAPI document, each with its parameters, bodies and statuses."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import yaml
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective


class OpenAPI(SphinxDirective):
    """Renders the document as sections. The file name is relative to the root of the repository."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        path = pathlib.Path(self.env.srcdir).parents[1] / self.arguments[0]
        self.env.note_dependency(str(path))
        document = yaml.safe_load(path.read_text())
        lines = StringList(list(_lines(document)), source=str(path))
        container = nodes.section()
        container.document = self.state.document
        self.state.nested_parse(lines, 0, container, match_titles=True)
        return container.children


def _lines(document: dict[str, Any]) -> Iterator[str]:
    for path, calls in document["paths"].items():
        for method, call in calls.items():
            title = f"{method.upper()} {path}"
            yield from (title, "-" * len(title), "", call["summary"], "")
            if "x-openstack-policy" in call:
                yield from (f"Policy rule: ``{call['x-openstack-policy']}``", "")
            yield from _parameters(call)
            if "requestBody" in call:
                yield from (f"Body: {_link(call['requestBody'])}", "")
            yield from _answers(call)
    yield from ("Bodies", "------", "")
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield from (f".. _schema-{name.lower()}:", "", name, "^" * len(name), "")
        text = yaml.safe_dump(schema, sort_keys=False, width=90).splitlines()
        yield from (".. code-block:: yaml", "", *(f"   {line}" for line in text), "")


def _parameters(call: dict[str, Any]) -> Iterator[str]:
    own = [parameter for parameter in call["parameters"] if "$ref" not in parameter]
    if own:
        yield from ("Parameters:", "")
    for parameter in own:
        schema = parameter["schema"]
        kind = schema.get("type", "string")
        if "enum" in schema:
            kind = " or ".join(f"``{value}``" for value in schema["enum"])
        required = "" if parameter["required"] else ", optional"
        text = schema.get("description", "")
        yield f"* ``{parameter['name']}`` ({parameter['in']}, {kind}{required}) {text}".rstrip()
    yield ""


def _answers(call: dict[str, Any]) -> Iterator[str]:
    statuses = call["responses"]
    success = next(iter(statuses))
    body = f": {_link(statuses[success])}" if "content" in statuses[success] else ", without a body"
    errors = ", ".join(status for status in statuses if status != success)
    yield from (f"Answer: {success}{body}. Errors: {errors}.", "")


def _link(holder: dict[str, Any]) -> str:
    [content] = holder["content"].values()
    name = content["schema"]["$ref"].rpartition("/")[2]
    return f":ref:`{name} <schema-{name.lower()}>`"


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("openapi", OpenAPI)
    return {"parallel_read_safe": True}
