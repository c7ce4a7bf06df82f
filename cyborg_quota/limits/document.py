# SPDX-License-Identifier: Apache-2.0
"""Converts limits and the project tree to a YAML document, and back. No I/O. An example::

    total: {gpu: 2000}
    defaults: {gpu: 10}
    projects:
    - id: atlas
      limits: {gpu: 100}
      children:
      - id: physics
        limits: {gpu: 30}
        minimums: {gpu: 8}
      overrides:
      - {resource: gpu, limit: 40, from: 2026-12-01T08:00Z, until: 2026-12-05T18:00Z, reason: workshop}

An import leaves limits and projects that the document does not contain unchanged. The position of a project in the
document determines its parent: a project at the top level is a root. A limit of null removes the limit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from cyborg_quota import exceptions, validation
from cyborg_quota.limits.limit_tree import LimitTree
from cyborg_quota.safe_repr import safe_repr
from cyborg_quota.types import (
    MAX_AMOUNT,
    MAX_LIMIT,
    MAX_REASON_CHARS,
    TOTAL,
    UNLIMITED,
    LimitOverride,
    RecordedChange,
    ResourceKey,
    TotalLimit,
    UsageKey,
    grouped,
)

MAX_LEVELS: Final = 64
"""The maximum number of levels of a document, which the reader accepts. (The tree has at most MAX_DEPTH.)"""

NAME_FORMAT: Final = "cyborg-quota-name"
REASON_FORMAT: Final = "cyborg-quota-reason"

_MAX_NESTING: Final = 4 * MAX_LEVELS
_IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_LISTS: Final = ("projects", "children")

_NAME: Final[Mapping[str, Any]] = {"description": "a name", "type": "string", "format": NAME_FORMAT}
_LIMIT: Final[Mapping[str, Any]] = {
    "description": f"an integer from -1 (unlimited) to {MAX_LIMIT}",
    "type": "integer",
    "minimum": UNLIMITED,
    "maximum": MAX_LIMIT,
}
_LIMITS: Final[Mapping[str, Any]] = {
    "description": "a mapping of resources to limits",
    "type": ["object", "null"],
    "propertyNames": _NAME,
    "additionalProperties": {**_LIMIT, "type": ["integer", "null"]},
}
_PODS: Final[Mapping[str, Any]] = {
    "description": "a mapping of pods to limits",
    "type": ["object", "null"],
    "propertyNames": _NAME,
    "additionalProperties": _LIMITS,
}
_TOTALS: Final[Mapping[str, Any]] = {
    **_LIMITS,
    "additionalProperties": {
        "description": f"an integer from 0 to {MAX_LIMIT}",
        "type": ["integer", "null"],
        "minimum": 0,
        "maximum": MAX_LIMIT,
    },
}
_MINIMUMS: Final[Mapping[str, Any]] = {
    "description": "a mapping of resources to minimums",
    "type": ["object", "null"],
    "propertyNames": _NAME,
    "additionalProperties": {
        "description": f"an integer from 0 to {MAX_AMOUNT}",
        "type": "integer",
        "minimum": 0,
        "maximum": MAX_AMOUNT,
    },
}
_TIME: Final[Mapping[str, Any]] = {"description": "a time as in 2026-12-01T08:00Z"}
"""(_moment checks it.)"""
_OVERRIDES: Final[Mapping[str, Any]] = {
    "description": "a list of overrides",
    "type": ["array", "null"],
    "items": {
        "description": "a mapping of resource, limit, from, until and reason",
        "type": "object",
        "properties": {
            "resource": _NAME,
            "limit": _LIMIT,
            "from": _TIME,
            "until": _TIME,
            "reason": {"description": f"one line of 1 to {MAX_REASON_CHARS} characters", "format": REASON_FORMAT},
        },
        "required": ["resource", "limit", "until"],
        "additionalProperties": False,
    },
}
_PROJECTS: Final[Mapping[str, Any]] = {
    "description": "a list of projects",
    "type": ["array", "null"],
    "items": {"$ref": "#/$defs/project"},
}
SCHEMA: Final[Mapping[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Limits and the project tree of cyborg_quota",
    "description": "a mapping of total, defaults and projects",
    "type": "object",
    "properties": {"total": _TOTALS, "defaults": _LIMITS, "projects": _PROJECTS},
    "additionalProperties": False,
    "$defs": {
        "project": {
            "description": "a mapping of id, limits, pods, overrides and children",
            "type": "object",
            "properties": {
                "id": _NAME,
                "limits": _LIMITS,
                "pods": _PODS,
                "minimums": _MINIMUMS,
                "overrides": _OVERRIDES,
                "children": _PROJECTS,
            },
            "required": ["id"],
            "additionalProperties": False,
        },
    },
}
"""The format of a document, as JSON Schema. An integer is written without a fraction: 1.0 is none. ``null`` for
``total``, ``defaults``, ``projects``, ``limits``, ``pods``, ``overrides`` or ``children`` means the same as an empty
value; null for a limit removes it."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclasses.dataclass(frozen=True, slots=True)
class NewOverride:
    """An override of a document. Times are naive UTC; ``starts_at`` None: now."""

    project_id: str
    resource: str
    limit: int
    starts_at: datetime.datetime | None
    until: datetime.datetime
    reason: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """The contents of a document. ``parents`` has parents before their children. A limit of None is to be removed."""

    defaults: Mapping[str, int | None]
    project_limits: Mapping[UsageKey, int | None]
    parents: Mapping[str, str | None]
    new_overrides: Sequence[NewOverride] = ()
    totals: Mapping[str, int | None] = dataclasses.field(default_factory=dict)
    minimums: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)

    @property
    def resources(self) -> set[str]:
        """The resources for which the document sets a limit."""
        given = [*self.defaults.items(), *self.totals.items()]
        given += [(key.resource, limit) for key, limit in self.project_limits.items()]
        limited = {resource for resource, limit in given if limit is not None}
        limited.update(resource for amounts in self.minimums.values() for resource in amounts)
        return limited | {override.resource for override in self.new_overrides}


class _UniqueLoader(_Loader):  # type: ignore[misc]
    """Rejects duplicate keys of a mapping. The loader of PyYAML would use the last one."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!a} is given twice", key.start_mark
                    )
                seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep=deep)


# A time stays text, which _moment parses.
_UniqueLoader.add_constructor("tag:yaml.org,2002:timestamp", _UniqueLoader.construct_yaml_str)


def parse(text: bytes | str) -> Any:
    """Parse a YAML text, for ``read``. Raises InvalidDocument."""
    try:
        depth = 0
        for event in yaml.parse(text, Loader=_Loader):
            # The C loader is recursive: with too many levels it would overflow the stack and crash the process.
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_NESTING:
                raise exceptions.InvalidDocument("the text", f"is nested more than {_MAX_NESTING} deep")
        return yaml.load(text, Loader=_UniqueLoader)  # noqa: S506  (a SafeLoader)
    except exceptions.InvalidDocument:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        location = "the text" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}"
        raise exceptions.InvalidDocument(location, f"is not valid YAML: {error.problem or error.context}") from None
    except Exception as error:  # PyYAML raises many types, for example for an invalid date or a number of 5000 digits
        raise exceptions.InvalidDocument("the text", f"is not valid YAML: {type(error).__name__}") from None


def render(value: Mapping[str, Any]) -> str:
    """The YAML text of a value that ``write`` returned."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None))


def read(value: object) -> Document:
    """The content of a parsed document. Raises InvalidDocument, which names the first error."""
    top = _validate("", value, "document")
    project_limits: dict[UsageKey, int | None] = {}
    parents: dict[str, str | None] = {}
    new_overrides: list[NewOverride] = []
    minimums: dict[str, Mapping[str, int]] = {}
    locations: dict[str, str] = {}
    todo = _entries("projects", top.get("projects"), None, 1)
    while todo:
        location, entry, parent_id, level = todo.pop()
        project = _validate(location, entry, "project")
        project_id = project["id"]
        if project_id in locations:
            raise exceptions.InvalidDocument(location, f"has the same id {project_id!a} as {locations[project_id]}")
        if level > MAX_LEVELS:
            raise exceptions.InvalidDocument(location, f"has project {project_id!a} more than {MAX_LEVELS} levels deep")
        locations[project_id] = location
        parents[project_id] = parent_id
        by_pod = {"": project.get("limits"), **(project.get("pods") or {})}
        project_limits |= {
            UsageKey(project_id, resource, pod): limit
            for pod, limits in by_pod.items()
            for resource, limit in (limits or {}).items()
        }
        if project.get("minimums"):
            minimums[project_id] = project["minimums"]
        new_overrides += [
            _override(f"{location}.overrides[{index}]", entry, project_id)
            for index, entry in enumerate(project.get("overrides") or ())
        ]
        todo += _entries(f"{location}.children", project.get("children"), project_id, level + 1)
    totals = top.get("total") or {}
    return Document(top.get("defaults") or {}, project_limits, parents, new_overrides, totals, minimums)


def _override(location: str, entry: Mapping[str, Any], project_id: str) -> NewOverride:
    starts_at = None if entry.get("from") is None else _moment(f"{location}.from", entry["from"])
    until = _moment(f"{location}.until", entry["until"])
    if starts_at is not None and until <= starts_at:
        raise exceptions.InvalidDocument(f"{location}.until", "must be later than from")
    reason = entry.get("reason")
    stripped = None if reason is None else reason.strip()
    return NewOverride(project_id, entry["resource"], entry["limit"], starts_at, until, stripped)


def _moment(location: str, value: object) -> datetime.datetime:
    """A time of a document as naive UTC. A date is its midnight. Text is parsed as ISO 8601."""
    moment = value
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            # (Before Python 3.11, fromisoformat does not know Z.)
            moment = datetime.datetime.fromisoformat(re.sub("[zZ]$", "+00:00", value))
    if not isinstance(moment, datetime.datetime):
        raise exceptions.InvalidDocument(location, f"must be {_TIME['description']}, not {_shown(value)}")
    try:
        return moment if moment.utcoffset() is None else moment.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    except OverflowError:
        raise exceptions.InvalidDocument(location, "must be a time that can be converted to UTC") from None


_Entry = tuple[str, object, "str | None", int]


def _entries(location: str, entries: list[object] | None, parent_id: str | None, level: int) -> list[_Entry]:
    """The entries of a list of projects, in reverse order, because ``read`` takes them from the end."""
    return [(f"{location}[{index}]", entry, parent_id, level) for index, entry in enumerate(entries or ())][::-1]


def _validate(location: str, value: object, definition: str) -> dict[str, Any]:
    """Check one document or project against its definition in SCHEMA, without the projects below it.

    ``read`` validates the projects one by one, and not jsonschema by recursion: aliases can make a few lines of YAML
    endless. Duplicate projects end such a document early.
    """
    shallow = value
    if isinstance(value, dict):
        shallow = {key: [] if key in _LISTS and isinstance(part, list) else part for key, part in value.items()}
    error = next(_validators()[definition].iter_errors(shallow), None)
    if error is not None:
        raise exceptions.InvalidDocument(*_explain(location, error))
    return value  # type: ignore[return-value]


@functools.cache
def _validators() -> dict[str, Any]:
    """A validator for each definition. Created at the first use: the import of jsonschema takes 0.1 s."""
    import jsonschema

    def check_type(validator: Any, types: Any, value: object, _schema: object) -> Iterator[Any]:
        """As jsonschema's own, which would put the whole value into its message."""
        if not any(validator.is_type(value, kind) for kind in ([types] if isinstance(types, str) else types)):
            yield jsonschema.ValidationError("type")

    def is_reason(value: object) -> bool:
        is_text = isinstance(value, str) and validation.has_only_printable(value)
        return value is None or (is_text and 0 < len(str(value).strip()) <= MAX_REASON_CHARS)

    formats = jsonschema.FormatChecker(formats=())
    formats.checks(NAME_FORMAT, raises=exceptions.InvalidName)(
        lambda value: not isinstance(value, str) or bool(validation.check_name("name", value))
    )
    formats.checks(REASON_FORMAT)(is_reason)
    base: Any = jsonschema.Draft202012Validator
    extend: Any = jsonschema.validators.extend
    types = base.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    )
    validator = extend(base, {"type": check_type}, type_checker=types)
    definitions = {"document": SCHEMA, "project": SCHEMA["$defs"]["project"]}
    return {name: validator(schema, format_checker=formats) for name, schema in definitions.items()}


def _explain(location: str, error: Any) -> tuple[str, str]:
    """(location, reason) of an error of jsonschema."""
    for part in error.absolute_path:
        location += f".{part}" if isinstance(part, str) and _IDENTIFIER.fullmatch(part) else f"[{_shown(part)}]"
    location = location.lstrip(".") or "the document"
    key = f"has the key {_shown(error.instance)}, which " if "propertyNames" in error.absolute_schema_path else ""
    if error.validator == "additionalProperties":
        known = error.schema["properties"]
        unknown = next(name for name in error.instance if name not in known)
        return location, f"has an unknown key {_shown(unknown)}; known are {', '.join(known)}"
    if error.validator == "required":
        return location, f"has no {next(name for name in error.validator_value if name not in error.instance)}"
    if error.validator == "format" and error.cause is not None:
        return location, f"{key}must be a name, not {_shown(error.instance)}: {error.cause.reason}"
    is_scalar = error.instance is not None and not isinstance(error.instance, (dict, list))
    hint = "; write it in quotes" if error.validator_value == "string" and is_scalar else ""
    return location, f"{key}must be {error.schema['description']}, not {_shown(error.instance)}{hint}"


def _shown(value: object) -> str:
    """A value for a message. Not the content of a mapping or list: aliases can make it endless."""
    if value is None:
        return "nothing"
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    return safe_repr(value)


def write(
    tree: LimitTree,
    live: Collection[LimitOverride] = (),
    totals: Collection[TotalLimit] = (),
    minimums: Mapping[UsageKey, int] | None = None,
) -> dict[str, Any]:
    """The document of everything that is set, and of the whole tree. ``live``: the overrides that have not ended."""
    kept = grouped((minimums or {}).items(), lambda item: item[0].project_id)
    limits: dict[str, dict[str, int]] = {}
    spans: dict[str, list[dict[str, Any]]] = {}
    for override in live:
        span = {"from": f"{override.starts_at.isoformat()}Z", "until": f"{override.until.isoformat()}Z"}
        reason = {} if override.reason is None else {"reason": override.reason}
        written = {"resource": override.resource, "limit": override.limit, **span, **reason}
        spans.setdefault(override.project_id, []).append(written)
    pods: dict[str, dict[str, dict[str, int]]] = {}
    for (project_id, pod, resource), limit in sorted(
        ((key.project_id, key.pod, key.resource), limit) for key, limit in tree.project_limits.items()
    ):
        of_project = pods.setdefault(project_id, {}) if pod else limits
        of_project.setdefault(pod or project_id, {})[resource] = limit

    def entry(project_id: str) -> dict[str, Any]:
        fields = {
            "id": project_id,
            "limits": limits.get(project_id),
            "minimums": {key.resource: minimum for key, minimum in sorted(kept.get(project_id, ()))},
            "pods": pods.get(project_id),
            "overrides": spans.get(project_id),
            "children": [entry(child) for child in tree.children_of.get(project_id, ())],
        }
        return {name: value for name, value in fields.items() if value}

    tops = [*tree.roots, *sorted(spans.keys() - set(tree.projects))]  # (those are not in the tree and have no limit)
    top = {"total": {total.resource: total.limit for total in totals}} if totals else {}
    return {**top, "defaults": dict(sorted(tree.defaults.items())), "projects": [entry(top) for top in tops]}


def apply(tree: LimitTree, document: Document) -> tuple[LimitTree, list[RecordedChange]]:
    """Apply a document to a copy of the tree. Returns the copy and the changes: defaults first, then by project."""
    after = tree.copy()
    changes = []
    for resource, limit in document.defaults.items():
        changes += put(after.defaults, resource, limit, None, ResourceKey(resource))
    by_project = grouped(document.project_limits.items(), lambda item: item[0].project_id)
    for project_id, parent_id in document.parents.items():
        if project_id not in after.parents or after.parents[project_id] != parent_id:
            changes.append(RecordedChange.of_parent(project_id, after.parents, parent_id))
        after.parents[project_id] = parent_id
        for key, limit in by_project.get(project_id, ()):
            changes += put(after.project_limits, key, limit, key.project_id, key.resource_key)
    return after, changes


def total_changes(before: Mapping[str, int], wanted: Mapping[str, int | None]) -> list[RecordedChange]:
    """The changes that setting these total limits would make. None: remove the limit."""
    return [
        RecordedChange.of_limit(TOTAL, ResourceKey(resource), before.get(resource), limit)
        for resource, limit in sorted(wanted.items())
        if before.get(resource) != limit
    ]


def put(
    limits: dict[Any, int], key: Any, limit: int | None, project_id: str | None, counted: ResourceKey
) -> list[RecordedChange]:
    """Set a limit, or remove it (None). Returns the change, if it is one."""
    before = limits.get(key)
    if before == limit:
        return []
    if limit is None:
        del limits[key]
    else:
        limits[key] = limit
    return [RecordedChange.of_limit(project_id, counted, before, limit)]
