# SPDX-License-Identifier: Apache-2.0
"""Converts limits and the project tree to a YAML document, and back. No I/O. An example::

    defaults: {gpu: 10}
    projects:
    - id: atlas
      limits: {gpu: 100}
      children:
      - id: physics
        limits: {gpu: 30}
      overrides:
      - {resource: gpu, limit: 40, from: 2026-12-01T08:00Z, until: 2026-12-05T18:00Z, reason: workshop}

An import leaves limits and projects that the document does not contain unchanged. The position of a project in the
document determines its parent: a project at the top level is a root. A limit of null removes the limit.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import yaml

from cyborg_quota import exceptions, validation
from cyborg_quota.limits.limit_tree import LimitTree
from cyborg_quota.types import MAX_LIMIT, MAX_REASON_CHARS, UNLIMITED, LimitChange, LimitOverride

MAX_LEVELS: Final = 64
"""The maximum number of levels of a document, independent of [limits] max_depth."""

_MAX_NESTING: Final = 4 * MAX_LEVELS
_ENTRY_KEYS: Final = ("id", "limits", "overrides", "children")
_OVERRIDE_KEYS: Final = ("resource", "limit", "from", "until", "reason")

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
    overrides: Mapping[tuple[str, str], int | None]
    parents: Mapping[str, str | None]
    new_overrides: Sequence[NewOverride] = ()

    @property
    def resources(self) -> set[str]:
        """The resources for which the document sets a limit."""
        given = [(resource, limit) for resource, limit in self.defaults.items()]
        given += [(resource, limit) for (_, resource), limit in self.overrides.items()]
        limited = {resource for resource, limit in given if limit is not None}
        return limited | {one.resource for one in self.new_overrides}


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


def parse(text: bytes | str) -> Any:
    """Parse a YAML text, for ``read``. Raises InvalidDocument."""
    try:
        depth = 0
        for event in yaml.parse(text, Loader=_Loader):
            # The C loader is recursive: with too many levels it would overflow the stack and crash the process.
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_NESTING:
                raise exceptions.InvalidDocument("the text", f"is nested more than {_MAX_NESTING} deep")
        return yaml.load(text, Loader=_UniqueLoader)
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


def read(document: object) -> Document:
    """Validate a parsed document. Raises InvalidDocument, which names the first error and its location."""
    top = _mapping("the document", document, ("defaults", "projects"))
    defaults = _limits("defaults", top.get("defaults"))
    overrides: dict[tuple[str, str], int | None] = {}
    parents: dict[str, str | None] = {}
    new_overrides: list[NewOverride] = []
    locations: dict[str, str] = {}
    todo = _entries("projects", top.get("projects"), None, 1)
    while todo:
        location, value, parent_id, level = todo.pop()
        entry = _mapping(location, value, _ENTRY_KEYS)
        project_id = _name(f"{location}.id", "project_id", entry.get("id"))
        if project_id in locations:
            raise exceptions.InvalidDocument(location, f"project {project_id!a} is already at {locations[project_id]}")
        if level > MAX_LEVELS:
            raise exceptions.InvalidDocument(location, f"project {project_id!a} is more than {MAX_LEVELS} levels deep")
        locations[project_id] = location
        parents[project_id] = parent_id
        for resource, limit in _limits(f"{location}.limits", entry.get("limits")).items():
            overrides[project_id, resource] = limit
        new_overrides += _overrides(f"{location}.overrides", entry.get("overrides"), project_id)
        todo += _entries(f"{location}.children", entry.get("children"), project_id, level + 1)
    return Document(defaults, overrides, parents, new_overrides)


def _overrides(place: str, value: object, project_id: str) -> list[NewOverride]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise exceptions.InvalidDocument(place, f"must be a list of overrides, not {_kind(value)}")
    return [_override(f"{place}[{index}]", entry, project_id) for index, entry in enumerate(value)]


def _override(place: str, value: object, project_id: str) -> NewOverride:
    found = _mapping(place, value, _OVERRIDE_KEYS)
    limit = _limit(f"{place}.limit", found.get("limit"))
    if limit is None:
        raise exceptions.InvalidDocument(f"{place}.limit", "must be a whole number, -1 for unlimited, not nothing")
    starts_at = None if found.get("from") is None else _moment(f"{place}.from", found["from"])
    until = _moment(f"{place}.until", found.get("until"))
    if starts_at is not None and until <= starts_at:
        raise exceptions.InvalidDocument(f"{place}.until", "must be later than from")
    reason = found.get("reason")
    if reason is not None and not (isinstance(reason, str) and is_reason(reason)):
        raise exceptions.InvalidDocument(f"{place}.reason", f"must be one line of 1 to {MAX_REASON_CHARS} characters")
    resource = _name(f"{place}.resource", "resource", found.get("resource"))
    return NewOverride(project_id, resource, limit, starts_at, until, reason)


def is_reason(text: str) -> bool:
    """Whether the text can be the reason of a change."""
    return 0 < len(text.strip()) <= MAX_REASON_CHARS and validation.has_only_printable(text)


def _moment(place: str, value: object) -> datetime.datetime:
    """A time of a document as naive UTC. YAML itself parses most forms; text is parsed as ISO 8601."""
    moment = value
    if isinstance(value, str):
        try:
            # (Before Python 3.11, fromisoformat does not know Z.)
            moment = datetime.datetime.fromisoformat(re.sub("[zZ]$", "+00:00", value))
        except ValueError:
            moment = None
    if not isinstance(moment, datetime.datetime):
        raise exceptions.InvalidDocument(place, f"must be a time as in 2026-12-01T08:00Z, not {_kind(value)}")
    try:
        return moment if moment.utcoffset() is None else moment.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    except OverflowError:
        raise exceptions.InvalidDocument(place, "must be a time that can be converted to UTC") from None


_Entry = tuple[str, object, "str | None", int]


def _entries(location: str, value: object, parent_id: str | None, level: int) -> list[_Entry]:
    """The entries of a list of projects, in reverse order, because ``read`` takes them from the end."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise exceptions.InvalidDocument(location, f"must be a list of projects, not {_kind(value)}")
    return [(f"{location}[{index}]", entry, parent_id, level) for index, entry in enumerate(value)][::-1]


def _mapping(location: str, value: object, keys: Collection[str]) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise exceptions.InvalidDocument(location, f"must be a mapping of {', '.join(keys)}, not {_kind(value)}")
    for key in value:
        if key not in keys:
            raise exceptions.InvalidDocument(
                location, f"has an unknown key {_key_text(key)}; known are {', '.join(keys)}"
            )
    return value


def _limits(location: str, value: object) -> dict[str, int | None]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise exceptions.InvalidDocument(location, f"must be a mapping of resources to limits, not {_kind(value)}")
    return {
        _name(location, "resource", key): _limit(f"{location}: {_key_text(key)}", limit) for key, limit in value.items()
    }


def _limit(location: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise exceptions.InvalidDocument(location, f"must be an integer (-1 means unlimited), not {_kind(value)}")
    if not UNLIMITED <= value <= MAX_LIMIT:
        raise exceptions.InvalidDocument(location, f"must be between -1 (unlimited) and {MAX_LIMIT}")
    return value


def _name(location: str, field: str, value: object) -> str:
    if not isinstance(value, str):
        hint = "" if value is None or isinstance(value, (dict, list)) else "; write it in quotes"
        raise exceptions.InvalidDocument(location, f"needs a name, not {_kind(value)}{hint}")
    try:
        return validation.check_name(field, value)
    except exceptions.InvalidName as error:
        raise exceptions.InvalidDocument(location, f"has an invalid name: {str(error).rstrip('.')}") from None


def _kind(value: object) -> str:
    """The type of a value, in words. Not the value itself: with YAML aliases, a short text can expand without limit."""
    if value is None:
        return "nothing"
    return {dict: "a mapping", list: "a list", str: "text", bool: "yes or no"}.get(
        type(value), f"a {type(value).__name__}"
    )


def _key_text(key: object) -> str:
    text = ascii(key) if isinstance(key, str) else _kind(key)
    return text if len(text) <= 80 else text[:77] + "..."


def write(tree: LimitTree, live: Collection[LimitOverride] = ()) -> dict[str, Any]:
    """The document of everything that is set, and of the whole tree. ``live``: the overrides that have not ended."""
    limits: dict[str, dict[str, int]] = {}
    spans: dict[str, list[dict[str, Any]]] = {}
    for one in live:
        spans.setdefault(one.project_id, []).append(_written(one))
    for (project_id, resource), limit in sorted(tree.overrides.items()):
        limits.setdefault(project_id, {})[resource] = limit

    def entry(project_id: str) -> dict[str, Any]:
        project: dict[str, Any] = {"id": project_id}
        if project_id in limits:
            project["limits"] = limits[project_id]
        if project_id in spans:
            project["overrides"] = spans[project_id]
        if project_id in tree.children_of:
            project["children"] = [entry(child) for child in tree.children_of[project_id]]
        return project

    tops = [*tree.roots, *sorted(spans.keys() - set(tree.projects))]  # (those are not in the tree and have no limit)
    return {"defaults": dict(sorted(tree.defaults.items())), "projects": [entry(top) for top in tops]}


def _written(one: LimitOverride) -> dict[str, Any]:
    found: dict[str, Any] = {"resource": one.resource, "limit": one.limit}
    found["from"] = f"{one.starts_at.isoformat()}Z"
    found["until"] = f"{one.until.isoformat()}Z"
    if one.reason is not None:
        found["reason"] = one.reason
    return found


def apply(tree: LimitTree, document: Document) -> tuple[LimitTree, list[LimitChange]]:
    """Apply a document to a copy of the tree. Returns the copy and the changes: defaults first, then by project."""
    after = tree.copy()
    changes = []
    for resource, limit in document.defaults.items():
        changes += _put(after.defaults, resource, limit, None, resource)
    by_project: dict[str, list[tuple[str, int | None]]] = {}
    for (project_id, resource), limit in document.overrides.items():
        by_project.setdefault(project_id, []).append((resource, limit))
    for project_id, parent_id in document.parents.items():
        if project_id not in after.parents:
            changes.append(LimitChange("add project", project_id, None, None, parent_id))
        elif project_id in after.ignored or after.parents[project_id] != parent_id:
            before = after.ignored.pop(project_id, after.parents[project_id])
            changes.append(LimitChange("move project", project_id, None, before, parent_id))
        after.parents[project_id] = parent_id
        for resource, limit in by_project.get(project_id, ()):
            changes += _put(after.overrides, (project_id, resource), limit, project_id, resource)
    return after, changes


def _put(
    limits: dict[Any, int], key: Any, limit: int | None, project_id: str | None, resource: str
) -> list[LimitChange]:
    before = limits.get(key)
    if before == limit:
        return []
    if limit is None:
        del limits[key]
        return [LimitChange("unset limit", project_id, resource, before, None)]
    limits[key] = limit
    return [LimitChange("set limit", project_id, resource, before, limit)]
