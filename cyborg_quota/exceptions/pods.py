# SPDX-License-Identifier: Apache-2.0
"""The exceptions of pods and bindings."""

from __future__ import annotations

from collections.abc import Mapping

from cyborg_quota.exceptions.base import InvalidRequest, QuotaError
from cyborg_quota.safe_repr import safe_repr


class InvalidPod(InvalidRequest):
    """A value of a pod cannot be stored."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        self.field, self.value, self.reason = field, value, reason
        super().__init__(f"Invalid {field} {safe_repr(value)} of a pod: {reason}.")


class PodNotFound(QuotaError):
    """No pod has this name."""

    def __init__(self, pod: str) -> None:
        self.pod = pod
        super().__init__(f"Pod {safe_repr(pod)} was not found.")


class PodExists(QuotaError):
    """Another pod has the same name. Nothing was changed."""

    def __init__(self, pod: str) -> None:
        self.pod = pod
        super().__init__(f"A pod with the name {safe_repr(pod)} exists.")


class PodInUse(QuotaError):
    """A pod cannot be removed: projects are bound to it, or providers belong to it. Nothing was changed."""

    def __init__(self, pod: str, reason: str) -> None:
        self.pod, self.reason = pod, reason
        super().__init__(f"Pod {safe_repr(pod)} cannot be removed: {reason}.")


class PodNotAvailable(QuotaError):
    """The pod takes neither bindings nor claims that name it, because of its state. Nothing was changed."""

    def __init__(self, pod: str, state: str) -> None:
        self.pod, self.state = pod, state
        super().__init__(
            f"Pod {safe_repr(pod)} takes no bindings and no claims: its state is {state} (see `pod enable`)."
        )


class NoPodFits(QuotaError):
    """The project has no pod for this zone and these tags, and no pod passes the filters. Nothing was changed."""

    def __init__(self, zone: str | None, affinity: Mapping[str, str]) -> None:
        self.zone, self.affinity = zone, dict(affinity)
        where = "any zone" if zone is None else f"zone {safe_repr(zone)}"
        tags = ", ".join(f"{safe_repr(key)}={safe_repr(value)}" for key, value in sorted(affinity.items()))
        super().__init__(
            f"No available pod passes the filters in {where} {f'with the tags {tags}' if tags else 'without tags'}."
        )


class BindingNotFound(QuotaError):
    """The project has no current binding for this zone and these tags."""

    def __init__(self, project_id: str) -> None:
        self.project_id = project_id
        super().__init__(
            f"Project {safe_repr(project_id)} is not bound to a pod for this zone and these tags; "
            "see `pod binding list`."
        )
