# SPDX-License-Identifier: Apache-2.0
"""The calls of QuotaEngine that only read: usage, headroom and reservations."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cyborg_quota import exceptions, validation
from cyborg_quota.ledger.enforcement import Bundles
from cyborg_quota.policy import FITS_RULE, SEE_PODS
from cyborg_quota.safe_repr import safe_repr
from cyborg_quota.subject import Subject, admin_call
from cyborg_quota.types import (
    ANY,
    STATES,
    Headroom,
    Marker,
    Reservation,
    ReservationFilter,
    Resource,
    State,
    Usage,
    UsageRecord,
    grouped,
)
from cyborg_quota.validation import Context


class Queries(Subject):
    """Reads usage, headroom and reservations. Nothing is written."""

    @property
    def resources(self) -> list[str]:
        """The names of the resources that are counted, sorted, as far as this process knows them."""
        return sorted(self._resources)

    def list_resources(self) -> list[Resource]:
        """The resources that are counted, with what describes them, sorted by name."""
        self._resources.renew(0)
        return [self._resources[name] for name in self.resources]

    def get_usages(self, context: Context, project_id: str | None = None) -> dict[str, Usage]:
        """{resource: Usage(limit, used, reserved, available)} of one project. Raises LimitsUnavailable."""
        return self._driver.headroom.get_usages(validation.project_of(context, project_id), self._resources.names())

    def headroom(
        self,
        context: Context,
        project_id: str | None = None,
        *,
        provider: str | None = None,
        pod: str | None = None,
    ) -> dict[str, Headroom]:
        """{resource: Headroom(fits, bound_by, scope, limit, free_total)} of one project, for each registered resource.

        ``fits`` is the largest amount that a reserve made now would be granted: a reserve of it passes, and one of more
        is refused, unless other calls change the usage or the limits in between. Raises LimitsUnavailable.

        ``provider``: None to consider only the quota; a UUID, a name or ANY to consider also the capacity, as a reserve
        with this provider does. Its units may refuse amounts below ``fits``. If the policy rule
        cyborg_quota:capacity:fits does not allow it, only the quota is considered. Raises ProviderNotFound.

        ``pod``: the name of a pod (which needs the policy rule cyborg_quota:pod:see), to consider also the limits per
        pod, and with the provider ANY only the providers of the pod, of which none takes a claim unless the pod is
        available. Raises NotAuthorized, PodNotFound.
        """
        project_id = validation.project_of(context, project_id)
        choice = self._provider_choice(context, project_id, provider, pod)
        by_resource = self._driver.headroom.rooms(project_id, self._resources.names(), *choice).fits
        shown = self._authority.visible(context, project_id, list(by_resource.values()))
        return dict(zip(by_resource, shown, strict=True))

    def how_many(
        self,
        context: Context,
        bundle: Mapping[str, int],
        project_id: str | None = None,
        *,
        provider: str | None = None,
        pod: str | None = None,
    ) -> Bundles:
        """How many times ``bundle`` ({resource: amount}) would be granted now, and the resource that bounds the number.

        With a ``provider``, as in ``headroom``, each bundle is a claim of its own, which fits on one provider. ``pod``:
        as in ``headroom``.
        """
        project_id = validation.project_of(context, project_id)
        checked = validation.check_deltas(bundle, self._resources)
        choice = self._provider_choice(context, project_id, provider, pod)
        return self._driver.headroom.rooms(project_id, checked, *choice, bundle=checked).bundles

    def _provider_choice(
        self, context: Context, project_id: str, provider: str | None, pod: str | None
    ) -> tuple[str | None, str | None]:
        """``provider``, or None if the context may not learn what fits there; and ``pod``.

        Raises NotAuthorized, PodNotFound.
        """
        checked = validation.optional_name("provider", provider)
        in_pod = validation.optional_name("pod", pod)
        if in_pod is not None:
            if checked not in (None, ANY):
                raise exceptions.InvalidRequest(
                    f"Give a pod or a provider, not both: pod {safe_repr(in_pod)}, provider {safe_repr(checked)}."
                )
            if not self._authority.allows(context, SEE_PODS, project_id):
                raise exceptions.NotAuthorized("naming a pod")
            self._driver.require_pod(in_pod)
        if checked is not None and not self._authority.allows(context, FITS_RULE, project_id):
            checked = None
        return checked, in_pod

    def get_detail(
        self, context: Context, project_id: str | None = None, *, pod: str | None = None
    ) -> list[UsageRecord]:
        """The usage and the headroom of one project by resource, read at one moment. Raises LimitsUnavailable.

        ``pod``: the usage in this pod, the limits there (UNLIMITED: none is set), and what fits there. It needs the
        policy rule cyborg_quota:pod:see. Raises NotAuthorized.
        """
        project_id = validation.project_of(context, project_id)
        _, in_pod = self._provider_choice(context, project_id, None, pod)
        records = self._driver.headroom.read_detail(project_id, self._resources.names(), in_pod)
        if validation.is_admin(context):
            return records
        return [record.without_others() for record in records]

    @admin_call
    def list_usages(
        self,
        context: Context,
        project_id: str | None = None,
        *,
        with_headroom: bool = False,
        limit: int | None = None,
        after: Marker | None = None,
        resource: str | None = None,
        pod: str | None = None,
    ) -> list[UsageRecord]:
        """The usage of all projects, or of one, as the database sorts projects and resources. Admin only.

        ``with_headroom``: each record has its headroom. ``limit`` is the maximum number of records; ``after`` is
        (project_id, resource) of the last record of the previous page, with the resource None for the last one of that
        project; ``resource``: only this one. ``pod``: the usage, the limits and the headrooms in this pod. Raises
        MarkerNotFound, PodNotFound, LimitsUnavailable.
        """
        in_pod = validation.optional_name("pod", pod)
        if in_pod is not None:
            self._driver.require_pod(in_pod)
        records = self._driver.headroom.list_usages(
            validation.optional_name("project_id", project_id),
            validation.check_page(limit, after, resource),
            pod=in_pod,
        )
        if not with_headroom:
            return records
        # (With the usage and the limits of the same moment as the headrooms.)
        by_project = grouped(records, lambda record: record.project_id)
        wanted = {project_id: [record.resource for record in own] for project_id, own in by_project.items()}
        current = self._driver.headroom.read_many(wanted, self._resources.names(), in_pod)
        details = {(record.project_id, record.resource): record for record in current}
        return [details[record.project_id, record.resource] for record in records]

    def get_reservations(
        self,
        context: Context,
        project_id: str | None = None,
        *,
        consumer: str | None = None,
        group: str | None = None,
    ) -> list[Reservation]:
        """The reservations of a consumer, of a group, or of the whole project, oldest first, with their providers."""
        return self._driver.reservations.read(
            ReservationFilter(
                project_id=validation.project_of(context, project_id),
                consumer=validation.optional_name("consumer", consumer),
                group=validation.check_group(group),
            )
        )

    @admin_call
    def list_by_consumer(
        self,
        context: Context,
        project_id: str | None = None,
        *,
        consumers: Collection[str] | None = None,
        limit: int | None = None,
        after: tuple[str, str] | None = None,
    ) -> list[Reservation]:
        """The live reservations that have a consumer, by the bytes of its name. Admin only.

        ``consumers``: only theirs; give their project too, which has an index. ``after``: the consumer and the UUID of
        the last reservation of the previous page.
        """
        last = None if after is None else validation.check_names("marker", after)
        if last is not None and len(last) != 2:
            raise exceptions.InvalidRequest("A marker must be a consumer and the UUID of its reservation.")
        return self._driver.reservations.list_by_consumer(
            project_id=validation.optional_name("project_id", project_id),
            consumers=None if consumers is None else validation.check_names("consumer", consumers),
            limit=validation.row_limit(limit),
            after=last,
        )

    @admin_call
    def list_reservations(
        self,
        context: Context,
        project_id: str | None = None,
        *,
        state: State | None = None,
        reservations: Collection[str] | None = None,
        consumer: str | None = None,
        group: str | None = None,
        limit: int | None = None,
        after: str | None = None,
        resource: str | None = None,
    ) -> list[Reservation]:
        """The reservations that match all given filters, oldest first. Admin only.

        ``limit`` is the maximum number. ``after`` is the UUID of the last reservation of the previous page.
        """
        if state is not None and state not in STATES:
            raise exceptions.InvalidName("state", state, f"the states are {', '.join(STATES)}")
        return self._driver.reservations.read(
            ReservationFilter(
                project_id=validation.optional_name("project_id", project_id),
                state=state,
                uuids=None if reservations is None else validation.uuid_list(reservations),
                consumer=validation.optional_name("consumer", consumer),
                group=validation.check_group(group),
                resource=validation.optional_name("resource", resource),
                limit=validation.row_limit(limit),
                after=validation.optional_name("after", after),
            )
        )
