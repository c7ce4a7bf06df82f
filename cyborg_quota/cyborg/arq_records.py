# SPDX-License-Identifier: Apache-2.0
"""Read ARQs and device profiles from Cyborg's tables, through Cyborg's db layer."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from cyborg import context as cyborg_context
from cyborg.common import constants, exception
from cyborg.db import api as db_api
from cyborg.db.sqlalchemy import api as sql_api
from cyborg.db.sqlalchemy import models
from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.conf.resource_rules import ClassNotCounted, ResourceMap, requests_of
from cyborg_quota.cyborg.diff import Record
from cyborg_quota.types import in_pages

LOG = logging.getLogger(__name__)

PAGE_ROWS: Final = 2000
BINDABLE: Final = tuple(constants.ARQ_STATES_TRANSFORM_MATRIX[constants.ARQ_BIND_STARTED])
"""The states from which Cyborg allows a bind."""
_SETTLED: Final = (constants.ARQ_INITIAL, constants.ARQ_UNBOUND, constants.ARQ_BIND_FAILED)
"""The states of an ARQ whose bind or delete is not in progress."""


def _query(method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call Cyborg's db layer. Raises QuotaError if the database cannot be read."""
    try:
        return method(*arguments, **options)
    except exception.CyborgException:
        raise
    except Exception as error:
        # The driver's message only: SQLAlchemy's message may contain a URL with a password.
        message = getattr(getattr(error, "inner_exception", error), "orig", None)
        reason = type(error).__name__ + (f": {message}" if message else "")
        raise exceptions.QuotaError(
            f"Cyborg's database could not be read ({reason}). See [database] connection in Cyborg's configuration."
        ) from None


@sql_api.main_context_manager.reader  # type: ignore[untyped-decorator]
def _page_after(context: Any, uuid: str) -> Any:
    """The next ARQs in the order of their UUIDs, which have an index. (Cyborg's own list is by id.)"""
    query = sql_api.model_query(context, models.ExtArq).filter(models.ExtArq.uuid > uuid)
    return query.order_by(models.ExtArq.uuid).limit(PAGE_ROWS).all()


@sql_api.main_context_manager.reader  # type: ignore[untyped-decorator]
def _changed_since(context: Any, moment: datetime.datetime) -> Any:
    # (Without paging by UUID: that would read the whole table in the order of UUIDs, to find a few rows.)
    return sql_api.model_query(context, models.ExtArq).filter(models.ExtArq.updated_at >= moment).all()


def is_bound(arq: str) -> bool:
    """Whether Cyborg has the ARQ bound. True if that cannot be read; a reconciliation then corrects the charge."""
    try:
        record = db_api.get_instance().extarq_get(cyborg_context.get_admin_context(), arq)
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


def check_unbound(context: Any, device_profile_id: int, maximum: int) -> None:
    """Refuse a POST after which a project would have more than ``maximum`` ARQs without an instance.

    Called before the first ARQ is created, so that all of them are created or none. Reads at most ``maximum`` + 1 rows.
    Raises Cyborg's Forbidden. ``maximum`` protects Cyborg's table, and is not a quota: ARQs are counted without a lock,
    so concurrent calls may together exceed it by the number that each of them creates. An exact limit would need a lock
    that one POST of a project holds during all of its calls to the conductor.
    """
    db = db_api.get_instance()
    requested = sum(map(requests_of, _groups(db.device_profile_get_by_id(context, device_profile_id))))
    # ARQs with an instance belong to Nova, which deletes those that it could not bind.
    unbound = db.extarq_list(
        context, project_id=context.project_id, instance_uuid=db_api.NULL_FILTER, limit=max(maximum - requested, 0) + 1
    )
    if len(unbound) + requested > maximum:
        raise exception.Forbidden(
            f"Quota exceeded: project {context.project_id} may have {maximum} accelerator requests that are not bound, "
            f"requested {requested} more"
        )


def _groups(profile: Any) -> Any:
    return json.loads(profile.profile_json)["groups"]


@dataclasses.dataclass
class Records:
    """Cyborg's ARQs, and the amounts of those that are bound.

    ``claims_capacity``: the records name the providers of the ARQs, whose capacity is claimed. ``uncounted``: {resource
    class: reason} of classes that no rule charges.
    """

    resource_map: ResourceMap
    claims_capacity: bool = False
    uncounted: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._db = db_api.get_instance()
        self._context = cyborg_context.get_admin_context()
        self._groups: dict[int, list[Mapping[str, str]]] = {}
        self._amounts: dict[tuple[int, int], dict[str, int]] = {}

    def all(self) -> Iterator[Record]:
        """Every ARQ, in the order of their UUIDs. One query per page of PAGE_ROWS ARQs."""
        return map(
            self._record,
            in_pages(
                lambda last: _query(_page_after, self._context, last or ""), PAGE_ROWS, lambda record: str(record.uuid)
            ),
        )

    def of(self, arqs: Collection[str]) -> dict[str, Record]:
        """Those of these ARQs that Cyborg has, by UUID."""
        uuids, records = sorted(arqs), {}
        for start in range(0, len(uuids), PAGE_ROWS):
            page = _query(self._db.extarq_list, self._context, uuid_range=uuids[start : start + PAGE_ROWS])
            records.update({record.uuid: self._record(record) for record in page})
        return records

    def changed_lately(self, seconds: float) -> Iterator[Record]:
        """The ARQs that were changed within this time, by the clocks of Cyborg's hosts."""
        now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
        return map(self._record, _query(_changed_since, self._context, now - datetime.timedelta(seconds=seconds)))

    def groups(self) -> list[Mapping[str, str]]:
        """All groups of all device profiles."""
        return [group for profile in self._groups_by_id().values() for group in profile]

    def _record(self, record: Any) -> Record:
        if record.state != constants.ARQ_BOUND:
            return Record(record.uuid, record.project_id, is_changing=record.state not in _SETTLED)
        names = (record.device_rp_uuid, record.hostname) if self.claims_capacity else ()
        providers = tuple(str(name) for name in names if name)
        return Record(record.uuid, record.project_id, record.instance_uuid, self._charged_as(record), providers)

    def _charged_as(self, record: Any) -> dict[str, int]:
        """The amounts to charge for a bound ARQ. Cached for each device profile group."""
        if record.device_profile_id not in self._groups:
            self._groups = self._groups_by_id()  # the first one, or one that was created while the ARQs were read
        group = self._groups[record.device_profile_id][record.device_profile_group_id]
        key = (record.device_profile_id, record.device_profile_group_id)
        if key not in self._amounts:
            try:
                self._amounts[key] = self.resource_map.deltas(group)
            except ClassNotCounted as error:
                self.uncounted[error.resource_class] = error.reason
                self._amounts[key] = {}
        return self._amounts[key]

    def _groups_by_id(self) -> dict[int, list[Mapping[str, str]]]:
        return {profile.id: _groups(profile) for profile in _query(self._db.device_profile_list, self._context)}
