# SPDX-License-Identifier: Apache-2.0
"""The names under which the counters and the limits of a resource within one pod are stored.

What a project holds of ``gpu`` in the pod ``p1`` has a usage row of its own, beside the row of ``gpu`` that counts all
pods. The ``resource`` of that row is a scoped name: a blank, the pod, the control character US, and the resource. No
resource has such a name, because names neither begin with a blank nor contain control characters. See decision record
0044.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.types import MAX_NAME_CHARS

_FIRST: Final = " "
SEPARATOR: Final = "\x1f"


def scoped_name(resource: str, pod: str) -> str:
    """The name of the counters of ``resource`` in ``pod``. Raises InvalidName if both names together are too long."""
    name = f"{prefix_of(pod)}{resource}"
    if len(name) > MAX_NAME_CHARS:
        most = MAX_NAME_CHARS - len(_FIRST) - len(SEPARATOR)
        raise exceptions.InvalidName("pod", pod, f"with the resource {resource}, it has more than {most} characters")
    return name


def name_of(resource: str, pod: str | None) -> str:
    """The name of the counters of ``resource`` in ``pod``, or in all pods (None)."""
    return resource if pod is None else scoped_name(resource, pod)


def prefix_of(pod: str | None) -> str:
    """The beginning of the scoped names of this pod; None: of all pods."""
    return _FIRST if pod is None else f"{_FIRST}{pod}{SEPARATOR}"


def is_scoped(name: str) -> bool:
    """Whether the name is a scoped one, not that of a resource."""
    return name.startswith(_FIRST)


def scoped(names: Iterable[str]) -> list[str]:
    """The scoped names among these."""
    return [name for name in names if is_scoped(name)]


def split(name: str) -> tuple[str, str | None]:
    """The resource and the pod (None: of a name that is not scoped)."""
    if not is_scoped(name):
        return name, None
    pod, _, resource = name[len(_FIRST) :].partition(SEPARATOR)
    return resource, pod


def in_words(name: str) -> str:
    """For a message: ``gpu``, or ``gpu in pod p1``."""
    resource, pod = split(name)
    return resource if pod is None else f"{resource} in pod {pod}"


def in_pods(amounts: Mapping[tuple[str, str], int]) -> dict[str, int]:
    """Amounts by (resource, pod), by scoped name."""
    return {scoped_name(*key): amount for key, amount in amounts.items()}
