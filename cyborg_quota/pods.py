# SPDX-License-Identifier: Apache-2.0
"""Pods, the public interface: several OpenStack deployments of one availability zone, and the pod of each project."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from cyborg_quota import exceptions, pod_collection, validation
from cyborg_quota.ledger.pod_selection import PodRequest
from cyborg_quota.pod_collection import RETRY_SECONDS, ReadEndpoint
from cyborg_quota.pod_types import (
    POD_STATES,
    Binding,
    CollectedPod,
    Pod,
    PodNotice,
    PodState,
    PodUsage,
    ResourceUse,
)
from cyborg_quota.policy import SEE_PODS
from cyborg_quota.subject import Subject
from cyborg_quota.types import MAX_AMOUNT
from cyborg_quota.validation import Context

_UNCHANGED: Final[Any] = object()


class Pods(Subject):
    """Pods, and which pod serves which project. All calls but ``select`` need an admin's context.

    A project is bound to one pod for each zone and each set of tags, until that pod is full, in maintenance or
    disabled. Tags are strings by name, such as {"purpose": "CAD"}.
    """

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
        of its capacity is in use. ``endpoint``: CLOUD or CLOUD/REGION of clouds.yaml, whose Placement measures it;
        None: its use is that of the inventories of its providers. Raises PodExists, InvalidName, InvalidPod.
        """
        validation.admin_only(context, "add_pod")
        pod = Pod(
            name=validation.pod_name(name),
            availability_zone=validation.optional_name("availability_zone", zone),
            resource_affinity=validation.check_affinity(affinity),
            weight=_check_integer("weight", weight, -MAX_AMOUNT, MAX_AMOUNT),
            threshold=_check_integer("threshold", threshold, 1, 100),
            endpoint=_check_endpoint(endpoint),
        )
        self._driver.pods.add(pod, validation.author_of(context, None))
        return pod

    def list_pods(self, context: Context, *, limit: int | None = None, after: str | None = None) -> list[Pod]:
        """All pods, in the order in which they were added.

        ``limit``: the maximum number. ``after``: the name of the last pod of the previous page. Raises MarkerNotFound.
        """
        validation.admin_only(context, "list_pods")
        return self._driver.pods.list_pods(validation.row_limit(limit), validation.optional_name("marker", after))

    def show(self, context: Context, name: str) -> Pod:
        """One pod. Raises PodNotFound."""
        validation.admin_only(context, "show_pod")
        return self._driver.pods.show(validation.check_name("pod", name))

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

        ``endpoint``: a new one removes the last measurement, which is that of the former one. ``state``: "available",
        "maintenance" or "disabled". After this call has returned, no project is bound to a pod that is not available;
        its present bindings move when they are selected the next time. Raises PodNotFound, InvalidPod.
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
            changes["endpoint"] = _check_endpoint(endpoint)
        if not changes:
            raise exceptions.InvalidRequest(
                "Nothing to change: give a state, tags, a weight, a threshold or an endpoint."
            )
        return self._driver.pods.change(
            validation.check_name("pod", name),
            lambda pod: dataclasses.replace(pod, **changes),
            validation.author_of(context, None),
        )

    def remove(self, context: Context, name: str) -> None:
        """Remove a pod. The history of its bindings stays. Raises PodNotFound, PodInUse (bindings or providers)."""
        validation.admin_only(context, "remove_pod")
        self._driver.pods.remove(validation.check_name("pod", name), validation.author_of(context, None))

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
        binding = self._driver.pods.select(project_id, pod_request)
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
        return self._driver.pods.list_bindings(
            project_id=validation.optional_name("project_id", project_id),
            pod=validation.optional_name("pod", pod),
            history=bool(history),
            limit=validation.row_limit(limit),
            after=_check_integer("after", after, 0, MAX_AMOUNT),
        )

    def purge_bindings(self, context: Context, older_than_seconds: int) -> int:
        """Delete the bindings that ended before this time. Returns their number."""
        validation.admin_only(context, "purge_bindings")
        return self._driver.pods.purge_bindings(validation.age_microseconds(older_than_seconds))

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
        return self._driver.pods.move(
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
        self._driver.pods.end(
            validation.check_name("project_id", project_id),
            validation.optional_name("availability_zone", zone),
            validation.check_affinity(affinity),
        )

    def end_bindings(self, context: Context, pod: str) -> int:
        """End the current bindings to a pod, and return their number.

        The next selection of each project creates another. Drain the pod first: while it is available, projects can be
        bound to it again. Raises PodNotFound.
        """
        validation.admin_only(context, "end_bindings")
        return self._driver.pods.end_bindings(validation.check_name("pod", pod))

    # --- measurements ---

    def list_usages(self, context: Context, name: str | None = None) -> list[PodUsage]:
        """The last measurement of each pod, or of one. Raises PodNotFound."""
        validation.admin_only(context, "list_pod_usages")
        return self._driver.pods.list_usages(validation.optional_name("pod", name))

    def measure(self, context: Context, names: list[str]) -> dict[str, dict[str, ResourceUse]]:
        """What the inventories of the providers of these pods have and use now; writes nothing."""
        validation.admin_only(context, "measure_pods")
        return self._driver.pods.measure([validation.check_name("pod", name) for name in names])

    def set_usage(self, context: Context, name: str, usage: Mapping[str, ResourceUse]) -> None:
        """Store the measurement of a pod, made now. Raises PodNotFound, InvalidPod."""
        validation.admin_only(context, "set_pod_usage")
        checked = _checked_usage(usage)
        self._driver.pods.set_usage(validation.check_name("pod", name), checked)

    def collect(
        self,
        context: Context,
        names: Sequence[str] | None = None,
        *,
        read_endpoint: ReadEndpoint | None = None,
        timeout_seconds: float = 60.0,
        max_age_seconds: float | None = None,
        progress: Callable[[int], object] = lambda _count: None,
    ) -> list[CollectedPod]:
        """Measure these pods, or all that are not disabled, and store what they have and use, as of now.

        A pod without an endpoint is measured by its own inventories, the others in parallel by ``read_endpoint`` (see
        integrations/inventory/pod_placement.py), each for at most ``timeout_seconds``. One that cannot be measured
        keeps its last figures. A pod that never had an inventory, and has no endpoint, stays without measurement.

        ``max_age_seconds``: only pods whose measurement is older, and that no other process has begun to measure in the
        last RETRY_SECONDS (or ``max_age_seconds``, if that is less). ``progress``: called at least once a second, with
        the number of pods done. Raises PodNotFound.
        """
        validation.admin_only(context, "collect_pods")
        known = {pod.name: pod for pod in self._driver.pods.list_pods()}
        if names is None:
            chosen = [pod for pod in known.values() if pod.state != "disabled"]
        else:
            chosen = [known[name] if name in known else self._driver.pods.show(name) for name in _checked_names(names)]
        if max_age_seconds is not None:
            chosen = self._due(chosen, max_age_seconds)
        errors: dict[str, str] = {}
        began, pods = self._driver.pods.now(), {pod.name: pod for pod in chosen}
        for name, answer in self._measured(chosen, read_endpoint, timeout_seconds, progress):
            if isinstance(answer, str):
                errors[name] = answer
            else:
                with contextlib.suppress(exceptions.PodNotFound):  # removed in the meantime
                    self._driver.pods.store_measurement(pods[name], _checked_usage(answer), began)
            progress(1)
        usages = {usage.pod: usage for usage in self._driver.pods.list_usages(None)} if chosen else {}
        return [CollectedPod(usages[pod.name], errors.get(pod.name)) for pod in chosen if pod.name in usages]

    def _due(self, pods: Sequence[Pod], max_age_seconds: float) -> list[Pod]:
        """Those that this process measures."""
        ages = {usage.pod: usage.age for usage in self._driver.pods.list_usages(None)}
        age = int(max_age_seconds * 1e6)
        retry = min(age, RETRY_SECONDS * 1_000_000)
        max_age = datetime.timedelta(microseconds=age)
        old = [pod for pod in pods if abs(ages.get(pod.name) or max_age) >= max_age]
        return [pod for pod in old if self._driver.pods.claim_due(pod.name, age, retry)]

    def _measured(
        self,
        pods: Sequence[Pod],
        read_endpoint: ReadEndpoint | None,
        timeout_seconds: float,
        progress: Callable[[int], object],
    ) -> Iterator[tuple[str, Mapping[str, ResourceUse] | str]]:
        endpoints = {pod.name: pod.endpoint for pod in pods if pod.endpoint is not None}
        own = [pod.name for pod in pods if pod.endpoint is None]
        if own:
            was_measured = {usage.pod for usage in self._driver.pods.list_usages(None) if usage.usage is not None}
            for name, usage in self._driver.pods.measure(own).items():
                if usage or name in was_measured:
                    yield name, usage
        if read_endpoint is None:
            yield from ((name, "The pod has an endpoint, but no read_endpoint was given.") for name in endpoints)
        else:
            yield from pod_collection.measure(
                endpoints, read_endpoint, timeout_seconds=timeout_seconds, tick=lambda: progress(0)
            )

    def notices(self, context: Context) -> list[PodNotice]:
        """The resources of pods whose last measurement crossed the threshold of the pod, in either direction.

        Each crossing is returned once, to one caller on one host.
        """
        validation.admin_only(context, "list_pod_notices")
        return self._driver.pods.notices()


def _checked_names(names: Sequence[str]) -> list[str]:
    """The names, each once."""
    return list(dict.fromkeys(validation.check_name("pod", name) for name in names))


def _checked_usage(usage: Mapping[str, ResourceUse]) -> dict[str, ResourceUse]:
    """A measurement. Raises InvalidName, InvalidPod."""
    return {
        validation.check_name("resource", resource): ResourceUse(
            _check_integer(f"capacity of {resource}", use[0], 0, 2**63 - 1),
            _check_integer(f"use of {resource}", use[1], 0, 2**63 - 1),
        )
        for resource, use in usage.items()
    }


def _check_endpoint(endpoint: str | None) -> str | None:
    """CLOUD or CLOUD/REGION. Raises InvalidName, InvalidPod."""
    checked = validation.optional_name("endpoint", endpoint)
    if checked is not None and not all(checked.split("/", 1)):
        raise exceptions.InvalidPod("endpoint", endpoint, "it must be CLOUD or CLOUD/REGION of clouds.yaml")
    return checked


def _check_integer(field: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise exceptions.InvalidPod(field, value, f"it must be an integer between {least} and {most}")
    return int(value)
