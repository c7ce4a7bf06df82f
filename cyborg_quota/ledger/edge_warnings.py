# SPDX-License-Identifier: Apache-2.0
"""Log lines about edges of the project tree that the limit driver ignores or will replace. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cyborg_quota.limit_types import ReplacedEdge

MOST_COMPARED: Final = 50
"""The maximum number of operators' edges that are compared with the source of the limits: each may need a request."""
_MOST_NAMED: Final = 5


def ignored(counts: Mapping[str, int]) -> str | None:
    """A warning of edges that another limit driver made, with the remedy. ``counts``: their number by origin."""
    if not counts:
        return None
    edges = ", ".join(f"{count} of {origin}" for origin, count in counts.items())
    example = f"cyborg-quota project detach --origin {next(iter(counts))}"
    return (
        f"The project tree has edges that a previous limit driver made ({edges}). They are ignored: those parents "
        f"do not limit the projects below them. To remove the edges: {example}; to make them your own, so that "
        f"the limits of the parents apply: {example} --keep."
    )


def replaced(edges: Sequence[ReplacedEdge], origin: str | None) -> str | None:
    """A warning of edges that operators made and that differ from those of ``origin``, the source of the limits."""
    if not edges:
        return None
    named = ", ".join(
        f"{one.project_id} is below {one.parent_id} and not {one.new_parent_id}" for one in edges[:_MOST_NAMED]
    )
    more = f", and {len(edges) - _MOST_NAMED} more" if len(edges) > _MOST_NAMED else ""
    return (
        f"The project tree has edges that an operator made and that differ from those of {origin} ({named}{more}). "
        f"[limits] driver = {origin} replaces each of them when its project is charged next: from then on, the limits "
        "of the operator's parent do not apply to the project. The history of limits keeps these edges. "
        f"(Only the first {MOST_COMPARED} edges of operators are compared.)"
    )
