# SPDX-License-Identifier: Apache-2.0
"""Read ARQs, device profiles and deployables from Cyborg's tables, through Cyborg's db layer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from cyborg import context as cyborg_context
from cyborg.common import constants, exception
from cyborg.db import api as db_api
from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.integrations.cyborg.diff import Attached
from cyborg_quota.integrations.cyborg.mapping import ClassNotCounted, ResourceMap, classes_of

LOG = logging.getLogger(__name__)

PAGE_ROWS: Final = 2000
IDENTITY_ROWS: Final = 500
"""The number of device profiles that identify a Cyborg."""
BINDABLE: Final = tuple(constants.ARQ_STATES_TRANSFORM_MATRIX[constants.ARQ_BIND_STARTED])
"""The states from which Cyborg allows a bind."""


class CyborgUnavailable(exceptions.QuotaError):
    """Cyborg's database could not be read."""

    def __init__(self, error: Exception) -> None:
        # The driver's message only: SQLAlchemy's message may contain a URL with a password.
        message = getattr(getattr(error, "inner_exception", error), "orig", None)
        self.kind = type(error).__name__
        self.reason = self.kind + (f": {message}" if message else "")
        super().__init__(
            f"Cyborg's database could not be read ({self.reason}). See [database] connection in Cyborg's configuration."
        )


def _query(method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return method(*arguments, **options)
    except exception.CyborgException:
        raise
    except Exception as error:
        raise CyborgUnavailable(error) from None


def admin_context() -> Any:
    """Cyborg's administrator context, which can read the ARQs of every project."""
    return cyborg_context.get_admin_context()


def is_bound(arq: str) -> bool:
    """Whether Cyborg has the ARQ bound. True if that cannot be read; a reconciliation then corrects the charge."""
    try:
        record = db_api.get_instance().extarq_get(admin_context(), arq)
    except exception.ResourceNotFound:
        return False
    except Exception:
        LOG.exception("The state of ARQ %s could not be read from Cyborg's database; assuming that it is bound.", arq)
        return True
    return bool(record.state == constants.ARQ_BOUND)


def groups_to_bind(context: Any, arqs: Sequence[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield each ARQ, if this context may read and bind it, with its device profile group.

    One query for all ARQs, and one for each device profile. Raises the errors that Cyborg would raise, for the same
    ARQ, before anything is reserved: ResourceNotFound, ARQBadState.
    """
    if not arqs:
        return
    db = db_api.get_instance()
    project_filter = {} if context.is_admin else {"project_id": context.project_id}
    records = {record.uuid: record for record in db.extarq_list(context, uuid_range=list(arqs), **project_filter)}
    groups: dict[int, list[Mapping[str, str]]] = {}
    for arq in arqs:
        record = records.get(arq) or db.extarq_get(context, arq, **project_filter)  # raises ResourceNotFound
        if record.state not in BINDABLE:
            raise exception.ARQBadState(state=record.state, uuid=arq, expected=list(BINDABLE))
        profile = record.device_profile_id
        if profile not in groups:
            groups[profile] = _groups(db.device_profile_get_by_id(context, profile))
        yield arq, groups[profile][record.device_profile_group_id]


def groups_of(context: Any, device_profile_id: int) -> list[Mapping[str, str]]:
    """The groups of a device profile."""
    return _groups(db_api.get_instance().device_profile_get_by_id(context, device_profile_id))


def class_of_provider(context: Any, rp_uuid: str) -> str | None:
    """The resource class of the deployable of a resource provider; None if there is none."""
    db = db_api.get_instance()
    try:
        deployable = db.deployable_get_by_rp_uuid(context, rp_uuid)
    except exception.ResourceNotFound:
        return None  # Cyborg's bind will raise the error
    rows = db.attribute_get_by_deployable_id(context, deployable.id)
    return next((str(row.value) for row in rows if row.key == "rc"), None)


def _groups(profile: Any) -> list[Mapping[str, str]]:
    groups: list[Mapping[str, str]] = json.loads(profile.profile_json)["groups"]
    return groups


@dataclasses.dataclass
class Records:
    """Bound ARQs and their amounts.

    ``claims_capacity``: the records name the providers of the ARQs, whose capacity is claimed. ``uncounted``: {resource
    class: reason} of classes that no rule charges.
    """

    resource_map: ResourceMap
    claims_capacity: bool = False
    uncounted: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._db = db_api.get_instance()
        self._context = admin_context()

    def bound(self) -> Iterator[Attached]:
        """Every ARQ in state Bound, oldest first. One query per page of PAGE_ROWS ARQs."""
        charged_as = self._charged_as()
        ids, last = [0], 0
        while True:
            page = self._page_after(ids)
            yield from self._attached([record for record in page if record.id > last], charged_as)
            if len(page) < PAGE_ROWS:
                return
            ids = [record.id for record in page]
            last = max(last, ids[-1])  # after a restart, skip rows that were already returned

    def _page_after(self, ids: Sequence[int]) -> Sequence[Any]:
        """The page after these row ids. If the last row was deleted since, continue after the row before it."""
        for marker in reversed(ids):
            try:
                page: Sequence[Any] = _query(
                    self._db.extarq_list, self._context, limit=PAGE_ROWS, marker=marker or None
                )
            except CyborgUnavailable as error:
                if error.kind != "NoResultFound":
                    raise
            else:
                return page
        return self._page_after([0])  # every row of the page was deleted: restart from the first row

    def bound_of(self, arqs: Collection[str]) -> dict[str, Attached]:
        """The bound ARQs among ``arqs``, by UUID."""
        charged_as, uuids, bound = self._charged_as(), sorted(arqs), {}
        for start in range(0, len(uuids), PAGE_ROWS):
            page = _query(self._db.extarq_list, self._context, uuid_range=uuids[start : start + PAGE_ROWS])
            bound.update({attached.arq: attached for attached in self._attached(page, charged_as)})
        return bound

    def unbound_of(self, arqs: Collection[str]) -> set[str]:
        """The ARQs among ``arqs`` that Cyborg has deleted or unbound."""
        uuids, others = sorted(arqs), set()
        for start in range(0, len(uuids), PAGE_ROWS):
            page = _query(self._db.extarq_list, self._context, uuid_range=uuids[start : start + PAGE_ROWS])
            others |= {record.uuid for record in page if record.state != constants.ARQ_UNBOUND}
        return set(uuids) - others

    def is_empty(self) -> bool:
        """Whether Cyborg has no ARQ in any state."""
        return not _query(self._db.extarq_list, self._context, limit=1)

    def identity(self) -> list[str]:
        """The UUIDs of the oldest device profiles: no other Cyborg has them, unless its database is a copy.

        They stay the same if the database moves, or is reached by another URL. ARQs cannot be made without a profile.
        """
        profiles = _query(self._db.device_profile_list, self._context)
        return [profile.uuid for profile in sorted(profiles, key=lambda profile: profile.id)[:IDENTITY_ROWS]]

    def groups(self) -> list[Mapping[str, str]]:
        """All groups of all device profiles."""
        profiles = _query(self._db.device_profile_list, self._context)
        return [group for profile in profiles for group in _groups(profile)]

    def _attached(self, page: Any, charged_as: _ChargedAs) -> Iterator[Attached]:
        for record in page:
            if record.state == constants.ARQ_BOUND:
                names = (record.device_rp_uuid, record.hostname) if self.claims_capacity else ()
                providers = tuple(str(name) for name in names if name)
                yield Attached(record.uuid, record.project_id, record.instance_uuid, charged_as(record), providers)

    def _charged_as(self) -> _ChargedAs:
        groups = self._groups_by_id()
        classes: dict[int, str] = {}
        if any(len(classes_of(group)) > 1 for profile in groups.values() for group in profile):
            rows = _query(self._db.attribute_get_by_filter, self._context, {"key": "rc"})
            classes = {row.deployable_id: row.value for row in rows}
        return _ChargedAs(self.resource_map, groups, classes, self.uncounted, self._groups_by_id)

    def _groups_by_id(self) -> dict[int, list[Mapping[str, str]]]:
        profiles = _query(self._db.device_profile_list, self._context)
        return {profile.id: _groups(profile) for profile in profiles}


class _ChargedAs:
    """Computes the amounts to charge for a bound ARQ. Cached for each device profile group and resource class."""

    def __init__(
        self,
        resource_map: ResourceMap,
        groups: Mapping[int, list[Mapping[str, str]]],
        classes: Mapping[int, str],
        uncounted: dict[str, str],
        read_groups: Callable[[], Mapping[int, list[Mapping[str, str]]]],
    ) -> None:
        self._map = resource_map
        self._read_groups = read_groups
        self._groups = groups
        self._classes = classes
        self._uncounted = uncounted
        self._known: dict[tuple[int, int, str | None], dict[str, int]] = {}

    def __call__(self, record: Any) -> dict[str, int]:
        key = (record.device_profile_id, record.device_profile_group_id, self._classes.get(record.deployable_id))
        if key not in self._known:
            if record.device_profile_id not in self._groups:
                self._groups = self._read_groups()  # this profile was created while the ARQs were read page by page
            try:
                self._known[key] = self._map.deltas(self._groups[key[0]][key[1]], key[2])
            except ClassNotCounted as error:
                self._uncounted[error.resource_class] = error.reason
                self._known[key] = {}
        return self._known[key]
