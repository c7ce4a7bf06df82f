# SPDX-License-Identifier: Apache-2.0
"""Compare the ledger with Cyborg's records, and repair the differences. Does not import Cyborg.

A difference counts only if two comparisons find it, a grace period apart, because both databases change independently
while they are read. After a repair, the repaired ARQs are read again, because they may have changed during the repair.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
import operator
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from oslo_log import log as logging

from cyborg_quota import Claim, QuotaEngine, exceptions, validation
from cyborg_quota.cyborg.diff import Difference, Observation, Record, Report, compare, format_amounts
from cyborg_quota.types import RESERVED, Reservation, grouped, in_pages

if TYPE_CHECKING:
    from cyborg_quota.cyborg.arq_records import Records

LOG = logging.getLogger(__name__)

_MAX_DIFFERENCES: Final = 50_000
"""The number of differences of each kind that are kept in memory and repaired at a time."""
_BATCH_ROWS: Final = 200
"""The number of differences repaired in one transaction."""
_FREE_CHANGES: Final = 10
"""Up to this number of changes, ``force`` is never needed."""

_OVERTAKEN: Final = (
    exceptions.ReservationConflict,
    exceptions.ReservationError,
    exceptions.InvalidRequest,
    exceptions.OverCapacity,
    exceptions.ProviderNotFound,
)
"""Errors of a repair whose ARQ, or the provider of its device, has changed concurrently. The repair of the other ARQs
continues."""

_MAX_FAILURES: Final = 20
"""After so many repairs that failed in the database, the repair ends: all the others may fail too."""

_FREE_LOSSES: Final = 5
"""Up to this number of charged ARQs that are not attached, the records are not taken for a wrong or old database.

Except in an automatic repair if several ARQs are charged, and none of them is attached.
"""

_LATELY_SECONDS: Final = 60.0
"""How long ago an ARQ was changed at most, to be compared by find_lately: several turns, and what clocks differ by."""
_PAGE_ROWS: Final = 5000

_ADMIN: Final = validation.admin_context()
_key: Final = operator.itemgetter(0)
Progress = Callable[[int], None]
Row = TypeVar("Row")


class TooManyChanges(exceptions.QuotaError):
    """The repair would change more accelerators than a reconciliation without ``force`` may."""

    def __init__(self, changes: int, compared: int, share: int) -> None:
        self.changes, self.compared, self.share = changes, compared, share
        super().__init__(
            f"{changes} of {compared} accelerators would change, more than [cyborg] reconcile_share = {share} percent; "
            "nothing was changed. If the list is right (a first installation charges all that is attached), run: "
            "cyborg-quota reconcile --heal --force"
        )


class RecordsShrunk(exceptions.QuotaError):
    """So many charged ARQs are missing from Cyborg's records that these may be a wrong database or an old backup."""

    def __init__(self, lost: int, charged: int, *, is_empty: bool) -> None:
        self.lost, self.charged, self.is_empty = lost, charged, is_empty
        problem = "Cyborg has no accelerator request at all" if is_empty else "Cyborg's records have shrunk"
        super().__init__(
            f"{problem}: {lost} of the {charged} that are charged are not attached; nothing was changed. If these are "
            f"the right database and its present contents, run: cyborg-quota reconcile --heal --force"
        )


@dataclasses.dataclass
class Reconciler:
    """Finds and repairs differences between the ledger and Cyborg's records.

    :param resources: the resources that accelerators are charged as. Charges of other resources are ignored, unless
        their consumer is a bound ARQ.
    :param source: only charges with this source are compared and changed; see Claim.source.
    :param pod: the pod in which attached accelerators count; see Claim.pod.
    """

    engine: QuotaEngine
    records: Records
    resources: Collection[str]
    grace_seconds: float
    share: int
    source: str | None = None
    pod: str | None = None
    wait: Callable[[float], object] = time.sleep

    def find(self) -> Report:
        """The differences that persist over the grace period."""
        return self._find(lambda: observations(self.engine, self.records))

    def find_lately(self) -> Report:
        """As ``find``, for the ARQs that changed lately, and those with a reservation of this source in flight."""
        changed = self.records.changed_lately(_LATELY_SECONDS + self.grace_seconds)
        in_flight = in_pages(
            lambda after: self.engine.list_reservations(_ADMIN, state=RESERVED, limit=_PAGE_ROWS, after=after),
            _PAGE_ROWS,
            lambda row: row.uuid,
        )
        arqs = [(record.project_id, record.arq) for record in changed if record.project_id is not None]
        arqs += [(row.project_id, row.consumer) for row in in_flight if row.consumer and row.source == self.source]
        return self._find(lambda: observations_of(self.engine, self.records, arqs))

    def _find(self, observe: Callable[[], Iterable[Observation]]) -> Report:
        report = self._compare(observe())
        if report.differences and self.grace_seconds:
            self.wait(self.grace_seconds)
            earlier = {difference.identity for difference in report.differences}
            report = self._compare(observe())
            persistent = [difference for difference in report.differences if difference.identity in earlier]
            report = dataclasses.replace(report, differences=persistent)
        return report

    def _compare(self, observed: Iterable[Observation]) -> Report:
        return compare(observed, self.resources, self.source, maximum=_MAX_DIFFERENCES)

    def claim_source(self, replaced: str | None = None) -> int:
        """Set the source of live charges whose source is ``replaced`` and that are of an ARQ; returns how many.

        None: of charges without a source. Correct only if no other service makes charges without one. A name: of those
        that this Cyborg made before its source was changed. Correct only if no other Cyborg uses that name. A charge
        that ends meanwhile is skipped. An ARQ's charges have a resource that accelerators are charged as, or the ARQ
        is bound: a wrong database of Cyborg makes no more charges claimed, and ``heal`` then refuses to release them.
        """
        count = 0
        uuids = (
            reservation.uuid
            for seen in observations(self.engine, self.records)
            for reservation in (*seen.charges, *seen.in_flight)
            if reservation.source == replaced and (seen.attached is not None or reservation.resource in self.resources)
        )
        while batch := list(itertools.islice(uuids, _PAGE_ROWS)):
            count += self.engine.set_source(_ADMIN, batch, str(self.source), replaced=replaced)
        return count

    def heal(
        self,
        report: Report,
        *,
        force: bool = False,
        is_automatic: bool = False,
        progress: Progress | None = None,
    ) -> list[Difference]:
        """Change the ledger to match Cyborg's records, regardless of limits; returns the repaired differences.

        Only charges of ``source`` are changed, and only the differences in the report are repaired: if it omits some,
        call ``find`` and ``heal`` again. ``is_automatic``: no operator has seen the report, so never release all of
        several charged ARQs. Raises TooManyChanges and RecordsShrunk before anything is changed.
        """
        wanted = [difference for difference in report.differences if difference.is_own]
        if not force:
            self._check(report, wanted, is_automatic=is_automatic)
        repaired: list[Difference] = []
        try:
            self._repair_all(wanted, repaired, progress)
        finally:
            # Correct repairs that met a concurrent change: an ARQ charged but just unbound, or released but just bound.
            # A bind that runs now settles its reservation itself.
            for start in range(0, len(repaired), _PAGE_ROWS):
                arqs = [
                    (project_id, difference.arq)
                    for difference in repaired[start : start + _PAGE_ROWS]
                    for project_id, _ in (*difference.before, *difference.after)
                ]
                seen = self._compare(observations_of(self.engine, self.records, arqs)).differences
                again = [difference for difference in seen if difference.is_own]
                self._repair_all([difference for difference in again if difference.problem != "not committed"], [])
        return sorted(repaired, key=lambda difference: difference.arq)

    def _check(self, report: Report, wanted: Sequence[Difference], *, is_automatic: bool) -> None:
        is_all = is_automatic and report.attached == 0 and report.charged > 1
        has_shrunk = report.missing > _FREE_LOSSES and report.missing * 2 > report.charged
        if (report.is_empty or is_all or has_shrunk) and (
            report.omitted_own or any(difference.is_missing for difference in wanted)
        ):
            raise RecordsShrunk(report.missing, report.charged, is_empty=report.is_empty)
        changed = [difference for difference in wanted if difference.problem != "not committed"]
        changes = len(changed) + (report.omitted_own if changed else 0)
        if changes > max(_FREE_CHANGES, report.compared * self.share / 100):
            raise TooManyChanges(changes, report.compared, self.share)

    def _repair_all(
        self, differences: Iterable[Difference], repaired: list[Difference], progress: Progress | None = None
    ) -> None:
        """Repair, and add what was changed to ``repaired``."""
        failures: list[Exception] = []
        for batch in _batches(differences):
            for done in self._repair(batch, failures):
                repaired.append(done)
                if done.problem != "released, not charged":
                    LOG.info(
                        "Repaired: ARQ %s (%s): was charged %s, is charged %s",
                        done.arq,
                        done.problem,
                        format_amounts(done.before),
                        format_amounts(done.after),
                    )
            if progress is not None:
                progress(len(batch))

    def _repair(self, batch: Sequence[Difference], failures: list[Exception]) -> Sequence[Difference]:
        """Release the wrong charges, then make the right ones: two transactions, which may be repeated.

        Returns the differences that were changed. If an ARQ cannot be charged because it was bound again concurrently,
        or if the database refuses its repair, the others are still repaired; its old charge may have been released by
        then. If a lock is not granted, only the ARQs of its project are not repaired. ``failures``: the errors of the
        database until now.
        """
        is_released = False
        try:
            charges = [
                charge.uuid
                for difference in batch
                if difference.problem != "not committed"
                for charge in difference.charges
            ]
            if charges:
                self.engine.release(_ADMIN, charges)
                is_released = True
            attached = [
                difference.attached for difference in batch if difference.attached is not None and difference.after
            ]
            if attached:
                adopt(self.engine, attached, self.source, self.pod)  # commits what is only reserved
        except (*_OVERTAKEN, exceptions.DatabaseError) as error:
            if len(batch) > 1 and not isinstance(error, exceptions.DatabaseUnavailable):
                return [done for difference in batch for done in self._repair([difference], failures)]
            failures += [error] * isinstance(error, exceptions.DatabaseError)
            if isinstance(error, exceptions.DatabaseUnreachable) or len(failures) >= _MAX_FAILURES:
                raise
            for difference in batch:
                LOG.warning("Not repaired%s: %s: %s", ", only released" if is_released else "", difference, error)
            return (
                [dataclasses.replace(difference, problem="released, not charged") for difference in batch]
                if is_released
                else []
            )
        return batch


def _batches(differences: Iterable[Difference]) -> Iterator[list[Difference]]:
    """Split into batches of at most _BATCH_ROWS, each of one project, ordered by instance."""

    def sort_key(difference: Difference) -> tuple[str, str]:
        if difference.attached is None:
            return difference.charges[0].project_id, ""
        return str(difference.attached.project_id), str(difference.attached.instance)

    for _, group in itertools.groupby(
        sorted(differences, key=sort_key), key=lambda difference: sort_key(difference)[0]
    ):
        while batch := list(itertools.islice(group, _BATCH_ROWS)):
            yield batch


def adopt(engine: QuotaEngine, attached: Sequence[Record], source: str | None, pod: str | None = None) -> None:
    """Charge ARQs of one project, and the capacity of their providers.

    Where the provider is not imported with all resources of an ARQ, only the quota is charged. Raises what
    ``QuotaEngine.adopt`` raises.
    """
    find_provider = functools.cache(lambda *key: engine.capacity.find_provider(_ADMIN, *key))
    claims = []
    for arq in attached:
        provider = find_provider(arq.providers, tuple(sorted(arq.deltas or ()))) if arq.providers else None
        in_pod = None if provider else pod
        claims.append(
            Claim(arq.arq, arq.deltas or {}, group=arq.instance, source=source, provider=provider, pod=in_pod)
        )
    engine.adopt(_ADMIN, claims, attached[0].project_id)


def observations(engine: QuotaEngine, records: Records) -> Iterator[Observation]:
    """Yield every consumer that has a live reservation or is an ARQ of Cyborg, in the order of their ids.

    Both are read in this order, page by page, so that a comparison needs the memory of two pages.
    """
    reservations = in_pages(
        lambda after: engine.list_by_consumer(_ADMIN, limit=_PAGE_ROWS, after=after),
        _PAGE_ROWS,
        lambda row: (str(row.consumer), row.uuid),
    )
    return _join(reservations, records.all())


def observations_of(engine: QuotaEngine, records: Records, arqs: Iterable[tuple[str, str]]) -> Iterator[Observation]:
    """As ``observations``, for these (project, ARQ). Charges to other projects are not seen."""
    by_project = {project: {arq for _, arq in pairs} for project, pairs in grouped(arqs, _key).items()}
    rows = [
        row
        for project, uuids in by_project.items()
        for row in engine.list_by_consumer(_ADMIN, project, consumers=uuids)
    ]
    by_uuid = records.of(set().union(*by_project.values()))
    return _join(sorted(rows, key=lambda row: str(row.consumer)), [by_uuid[arq] for arq in sorted(by_uuid)])


def _join(rows: Iterable[Reservation], records: Iterable[Record]) -> Iterator[Observation]:
    reserved = _in_order((str(row.consumer), row) for row in rows)
    known = _in_order((record.arq, record) for record in records)
    for arq, group in itertools.groupby(heapq.merge(reserved, known, key=_key), key=_key):
        items = [item for _, item in group]
        live = [item for item in items if isinstance(item, Reservation)]
        yield Observation(
            arq,
            tuple(row for row in live if row.state != RESERVED),
            tuple(row for row in live if row.state == RESERVED),
            next((item for item in items if isinstance(item, Record)), None),
        )


def _in_order(items: Iterable[tuple[str, Row]]) -> Iterator[tuple[str, Row]]:
    """The items, by key. Raises QuotaError if they are not in order: what is attached would seem not to be charged."""
    last = ""
    for key, item in items:
        if key < last:
            raise exceptions.QuotaError(f"The database does not sort names by their bytes: {last!a} before {key!a}.")
        last = key
        yield key, item
