# SPDX-License-Identifier: Apache-2.0
"""Pods, the public interface: several OpenStack deployments of one availability zone, and the pod of each project."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from cyborg_quota import exceptions, validation
from cyborg_quota.ledger.base import QuotaDriver
from cyborg_quota.ledger.pod_selection import PodRequest
from cyborg_quota.pod_types import POD_STATES, Binding, Pod, PodState, PodUsage, ResourceUse
from cyborg_quota.policy import SEE_PODS, Policy
from cyborg_quota.types import MAX_AMOUNT
from cyborg_quota.validation import Context

if TYPE_CHECKING:
    from cyborg_quota.ledger.pods import PodManager

_UNCHANGED: Final[Any] = object()


class Pods:
    """Pods, and which pod serves which project. All calls but ``select`` need an admin's context.

    A project is bound to one pod for each zone and each set of tags, until that pod is full, in maintenance or
    disabled. Tags are strings by name, such as {"purpose": "CAD"}.
    """

    def __init__(self, driver: QuotaDriver, resources: Mapping[str, Any], authority: Policy) -> None:
        self._driver = driver
        self._resources = resources
        self._authority = authority

    @property
    def _pods(self) -> PodManager:
        return self._driver.pods

    # --- pods ---

    def add(
        self,
        context: Context,
        name: str,
        *,
        zone: str | None = None,
        affinity: Mapping[str, str] | None = None,
        weight: int = 0,
        threshold: int = 100,
        endpoint: str | None = None,
    ) -> Pod:
        """Add an available pod without measurement, and return it.

        ``weight``: pods with a higher weight are preferred. ``threshold``: the pod counts as full when this percentage
        of its capacity is in use. ``endpoint``: its name in clouds.yaml; None: its use is that of the inventories of
        its providers. Raises PodExists, InvalidName, InvalidPod.
        """
        validation.admin_only(context, "add_pod")
        pod = Pod(
            name=validation.pod_name(name),
            availability_zone=validation.optional_name("availability_zone", zone),
            resource_affinity=validation.check_affinity(affinity),
            weight=_check_integer("weight", weight, -MAX_AMOUNT, MAX_AMOUNT),
            threshold=_check_integer("threshold", threshold, 1, 100),
            endpoint=validation.optional_name("endpoint", endpoint),
        )
        self._pods.add(pod)
        return pod

    def list_pods(self, context: Context, *, limit: int | None = None, after: str | None = None) -> list[Pod]:
        """All pods, in the order in which they were added.

        ``limit``: the maximum number. ``after``: the name of the last pod of the previous page. Raises MarkerNotFound.
        """
        validation.admin_only(context, "list_pods")
        return self._pods.list_pods(validation.row_limit(limit), validation.optional_name("marker", after))

    def show(self, context: Context, name: str) -> Pod:
        """One pod. Raises PodNotFound."""
        validation.admin_only(context, "show_pod")
        return self._pods.show(validation.check_name("pod", name))

    def change(
        self,
        context: Context,
        name: str,
        *,
        state: PodState = _UNCHANGED,
        affinity: Mapping[str, str] = _UNCHANGED,
        weight: int = _UNCHANGED,
        threshold: int = _UNCHANGED,
        endpoint: str | None = _UNCHANGED,
    ) -> Pod:
        """Change the given values of a pod, and return it. Its zone and its name cannot change.

        ``state``: "available", "maintenance" or "disabled". From the moment at which this call returns, no project is
        bound to a pod that is not available; its present bindings move when they are selected the next time. Raises
        PodNotFound, InvalidPod.
        """
        validation.admin_only(context, "change_pod")
        changes: dict[str, Any] = {}
        if state is not _UNCHANGED:
            if state not in POD_STATES:
                raise exceptions.InvalidPod("state", state, f"the states are {', '.join(POD_STATES)}")
            changes["state"] = state
        if affinity is not _UNCHANGED:
            changes["resource_affinity"] = validation.check_affinity(affinity)
        if weight is not _UNCHANGED:
            changes["weight"] = _check_integer("weight", weight, -MAX_AMOUNT, MAX_AMOUNT)
        if threshold is not _UNCHANGED:
            changes["threshold"] = _check_integer("threshold", threshold, 1, 100)
        if endpoint is not _UNCHANGED:
            changes["endpoint"] = validation.optional_name("endpoint", endpoint)
        if not changes:
            raise exceptions.InvalidRequest(
                "Nothing to change: give a state, tags, a weight, a threshold or an endpoint."
            )
        return self._pods.change(validation.check_name("pod", name), lambda pod: dataclasses.replace(pod, **changes))

    def remove(self, context: Context, name: str) -> None:
        """Remove a pod. The history of its bindings stays. Raises PodNotFound, PodInUse (bindings or providers)."""
        validation.admin_only(context, "remove_pod")
        self._pods.remove(validation.check_name("pod", name))

    # --- the pod of a project ---

    def select(
        self,
        context: Context,
        zone: str | None = None,
        affinity: Mapping[str, str] | None = None,
        request: Mapping[str, int] | None = None,
        project_id: str | None = None,
    ) -> Binding:
        """The binding of the project for this zone and these tags. It is created or moved if needed.

        It moves only if its pod is not available, or was full when it was measured last, and another pod passes the
        filters. ``request`` ({resource: amount}): only these resources decide whether a pod is full; None: all of its
        resources. Concurrent calls for one project return the same pod. Unless the policy rule cyborg_quota:pod:see
        allows the context to see it, the name of the pod is None. Raises NoPodFits, InvalidName, UnknownResource,
        InvalidDelta.
        """
        project_id = validation.project_of(context, project_id)
        pod_request = PodRequest(
            validation.optional_name("availability_zone", zone),
            validation.check_affinity(affinity),
            None if request is None else validation.check_deltas(request, self._resources),
        )
        binding = self._pods.select(project_id, pod_request)
        if self._authority.allows(context, SEE_PODS, project_id):
            return binding
        return dataclasses.replace(binding, pod=None)

    def list_bindings(
        self,
        context: Context,
        project_id: str | None = None,
        *,
        pod: str | None = None,
        history: bool = False,
        limit: int | None = None,
        after: int = 0,
    ) -> list[tuple[int, Binding]]:
        """Current bindings and their ids, the oldest first. ``history``: also those that ended.

        ``limit``: the maximum number. ``after``: the id of the last binding of the previous page.
        """
        validation.admin_only(context, "list_bindings")
        return self._pods.list_bindings(
            project_id=validation.optional_name("project_id", project_id),
            pod=validation.optional_name("pod", pod),
            history=bool(history),
            limit=validation.row_limit(limit),
            after=_check_integer("after", after, 0, MAX_AMOUNT),
        )

    def move_binding(
        self,
        context: Context,
        project_id: str,
        pod: str,
        zone: str | None = None,
        affinity: Mapping[str, str] | None = None,
    ) -> Binding:
        """Bind a project to this pod for a zone and tags, even if a filter would exclude the pod.

        What the project holds stays where it is. Raises PodNotFound, PodNotAvailable.
        """
        validation.admin_only(context, "move_binding")
        return self._pods.move(
            validation.check_name("project_id", project_id),
            validation.optional_name("availability_zone", zone),
            validation.check_affinity(affinity),
            validation.check_name("pod", pod),
        )

    def end_binding(
        self,
        context: Context,
        project_id: str,
        zone: str | None = None,
        affinity: Mapping[str, str] | None = None,
    ) -> None:
        """End the current binding of a project; its next selection creates another. Raises BindingNotFound."""
        validation.admin_only(context, "end_binding")
        self._pods.end(
            validation.check_name("project_id", project_id),
            validation.optional_name("availability_zone", zone),
            validation.check_affinity(affinity),
        )

    # --- measurements ---

    def list_usages(self, context: Context, name: str | None = None) -> list[PodUsage]:
        """The last measurement of each pod, or of one. Raises PodNotFound."""
        validation.admin_only(context, "list_pod_usages")
        return self._pods.list_usages(validation.optional_name("pod", name))

    def measure(self, context: Context, names: list[str]) -> dict[str, dict[str, ResourceUse]]:
        """What the inventories of the providers of these pods have and use now; writes nothing."""
        validation.admin_only(context, "measure_pods")
        return self._pods.measure([validation.check_name("pod", name) for name in names])

    def set_usage(self, context: Context, name: str, usage: Mapping[str, ResourceUse]) -> None:
        """Store the measurement of a pod, made now. Raises PodNotFound, InvalidPod."""
        validation.admin_only(context, "set_pod_usage")
        checked = {
            validation.check_name("resource", resource): ResourceUse(
                _check_integer(f"capacity of {resource}", use[0], 0, 2**63 - 1),
                _check_integer(f"use of {resource}", use[1], 0, 2**63 - 1),
            )
            for resource, use in usage.items()
        }
        self._pods.set_usage(validation.check_name("pod", name), checked)


def _check_integer(field: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise exceptions.InvalidPod(field, value, f"it must be an integer between {least} and {most}")
    return int(value)
