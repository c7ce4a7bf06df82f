# SPDX-License-Identifier: Apache-2.0
"""The ledger against Cyborg's records: what differs, and how it is made right. Knows Cyborg only by what is passed in.

Both sides change while they are read, each by itself, so one look proves nothing: a difference is one that two looks
found, a grace apart. And what has been repaired is looked at once more, in case it moved at that very moment.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

from oslo_log import log as logging

from cyborg_quota import Claim, QuotaEngine, exceptions, validation
from cyborg_quota.integrations.cyborg.diff import Attached, Charge, Difference, Records, Report, compare, shown
from cyborg_quota.types import COMMITTED, RESERVED, Reservation

LOG = logging.getLogger(__name__)

_PAGE_ROWS: Final = 5000
_BATCH_ROWS: Final = 200
"""Repaired in one transaction."""
_FREE_CHANGES: Final = 10
"""So many changes never ask for force."""

_OVERTAKEN: Final = (exceptions.ReservationConflict, exceptions.ReservationNotFound, exceptions.InvalidRequest)
"""What one ARQ's repair may raise that has moved meanwhile; the others go on."""

_FREE_LOSSES: Final = 5
"""So many ARQs that are charged and not attached are never taken for a wrong or an old database."""

Progress = Callable[[int], None]


class TooManyChanges(exceptions.QuotaError):
    """More would change than one reconciliation may by itself."""

    def __init__(self, changes: int, compared: int, share: int) -> None:
        self.changes, self.compared, self.share = changes, compared, share
        super().__init__(
            f"{changes} of {compared} accelerators would change, more than [cyborg] reconcile_share = {share} percent; "
            "nothing was changed. If the list is right (a first installation charges all that is attached), run: "
            "cyborg-quota reconcile --heal --force"
        )


class RecordsShrunk(exceptions.QuotaError):
    """Cyborg's records lack so many ARQs that they may be another database's, or an old backup's."""

    def __init__(self, lost: int, charged: int, *, is_empty: bool) -> None:
        self.lost, self.charged, self.is_empty = lost, charged, is_empty
        found = "Cyborg has no accelerator request at all" if is_empty else "Cyborg's records have shrunk"
        super().__init__(
            f"{found}: {lost} of the {charged} that are charged are not attached; nothing was changed. If these are "
            "the right database and its present contents, run: cyborg-quota reconcile --heal --force"
        )


class Reconciler:
    """``resources``: what accelerators are charged as; of what is not bound, the ledger's others are left alone.

    ``source``: whose charges are compared and changed; see Claim.source.
    """

    def __init__(
        self,
        engine: QuotaEngine,
        records: Records,
        resources: Collection[str],
        *,
        grace_seconds: float,
        share: int,
        source: str | None = None,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._engine = engine
        self._records = records
        self._resources = frozenset(resources)
        self._grace = grace_seconds
        self._share = share
        self._source = source
        self._wait = wait
        self._admin = validation.admin_context()

    def find(self) -> Report:
        """What differs, and still does after the grace."""
        report = self._select_rows()
        if report.differences and self._grace:
            self._wait(self._grace)
            lasting = {one.identity for one in report.differences}
            report = self._select_rows()
            still = [one for one in report.differences if one.identity in lasting]
            report = dataclasses.replace(report, differences=still)
        return self._with_certainty(report)

    def _with_certainty(self, report: Report) -> Report:
        """Ask Cyborg about the ARQs that are not attached: they may be in a state between bound and unbound."""
        lost = [one.arq for one in report.differences if one.attached is None]
        if not lost:
            return report
        gone = self._records.unbound_of(lost)
        marked = [
            dataclasses.replace(one, is_certain=one.is_own and one.attached is None and one.arq in gone)
            for one in report.differences
        ]
        return dataclasses.replace(report, differences=marked, is_empty=self._records.is_empty())

    def claim_source(self) -> int:
        """Give our source to live charges that have none and that a comparison looks at; returns how many.

        For the charges of a release that recorded no source. Only right where nobody else charges without one.
        """
        bound = {one.arq for one in self._records.bound()}
        uuids = [
            row.uuid
            for state in (RESERVED, COMMITTED)
            for row in self._rows(state)
            if row.source is None and (row.resource in self._resources or row.consumer in bound)
        ]
        return self._engine.set_source(self._admin, uuids, str(self._source)) if uuids else 0

    def _select_rows(self) -> Report:
        in_flight = {one.consumer for one in self._rows(RESERVED)}
        charges: dict[str, list[Charge]] = {}
        for row in self._rows(COMMITTED):
            charge = Charge(row.uuid, row.project_id, row.resource, row.delta, row.source)
            charges.setdefault(str(row.consumer), []).append(charge)
        # Once more: what was reserved, and committed, between the two.
        in_flight |= {one.consumer for one in self._rows(RESERVED)}
        busy = {str(one) for one in in_flight}
        return compare(charges, busy, self._records.bound(), self._resources, self._source)

    def _rows(self, state: Literal["reserved", "committed"]) -> Iterator[Reservation]:
        after: str | None = None
        while True:
            page = self._engine.list_reservations(self._admin, state=state, limit=_PAGE_ROWS, after=after)
            yield from (row for row in page if row.consumer is not None)
            if len(page) < _PAGE_ROWS:
                return
            after = page[-1].uuid

    def heal(
        self, report: Report, *, force: bool = False, only_certain: bool = False, progress: Progress | None = None
    ) -> list[Difference]:
        """Make the ledger as Cyborg's records are, whatever the limits; returns what was repaired.

        Of our own source alone; ``only_certain``: and only what Cyborg does not have any more, or has unbound. Raises
        TooManyChanges and RecordsShrunk before anything is changed.
        """
        wanted = [one for one in report.differences if one.is_own and (one.is_certain or not only_certain)]
        if not force:
            self._check(report, wanted)
        repaired: list[Difference] = []
        adopted: dict[str, list[str]] = {}
        for batch in _batches(wanted):
            for one in self._repair(batch, adopted):
                repaired.append(one)
                self._say(one)
            if progress is not None:
                progress(len(batch))
        self._look_again(repaired, adopted)
        return sorted(repaired, key=lambda one: one.arq)

    def _check(self, report: Report, wanted: Sequence[Difference]) -> None:
        lost = report.lost
        has_shrunk = report.is_empty or (lost > _FREE_LOSSES and lost * 2 > report.charged)
        if has_shrunk and any(one.attached is None for one in wanted):
            raise RecordsShrunk(lost, report.charged, is_empty=report.is_empty)
        changes = len(wanted)
        if changes > max(_FREE_CHANGES, report.compared * self._share / 100):
            raise TooManyChanges(changes, report.compared, self._share)

    def _repair(self, batch: Sequence[Difference], adopted: dict[str, list[str]]) -> Sequence[Difference]:
        """Release what is wrong, charge what is right: two transactions, of which either may be repeated.

        Returns what was changed. One that cannot be (bound anew, otherwise, at this moment) does not stop the others;
        what it was charged may be released by then.
        """
        is_released = False
        try:
            charges = [charge.uuid for one in batch for charge in one.charges]
            if charges:
                self._engine.release(self._admin, charges)
                is_released = True
            attached = [one.attached for one in batch if one.attached is not None and one.after]
            if attached:
                adopted.update(self._adopt(attached))
        except _OVERTAKEN as error:
            if len(batch) > 1:
                return [done for one in batch for done in self._repair([one], adopted)]
            LOG.warning("Not repaired%s: %s: %s", ", only released" if is_released else "", batch[0], error)
            return [dataclasses.replace(batch[0], problem="released, not charged")] if is_released else []
        return batch

    def _adopt(self, attached: Sequence[Attached]) -> dict[str, list[str]]:
        """All of one project's."""
        claims = [Claim(one.arq, one.deltas, group=one.instance, source=self._source) for one in attached]
        uuids = iter(self._engine.adopt(self._admin, claims, attached[0].project_id))
        return {claim.consumer or "": [next(uuids) for _ in claim.deltas] for claim in claims}

    @staticmethod
    def _say(one: Difference) -> None:
        if one.problem == "released, not charged":
            return  # it was said where it happened
        LOG.info(
            "Repaired: ARQ %s (%s): was charged %s, is charged %s",
            one.arq,
            one.problem,
            shown(one.before),
            shown(one.after),
        )

    def _look_again(self, repaired: Sequence[Difference], adopted: Mapping[str, list[str]]) -> None:
        """Undo what was overtaken: charged when it had just been unbound, or released when it had just been bound."""
        if not repaired:
            return
        bound = self._records.bound_of([one.arq for one in repaired])
        for one in repaired:
            now = bound.get(one.arq)
            if one.arq in adopted and (now is None or now.project_id != getattr(one.attached, "project_id", None)):
                self._engine.release(self._admin, adopted[one.arq])
                LOG.info("ARQ %s was unbound meanwhile, and is not charged.", one.arq)
            elif one.attached is None and now is not None and now.project_id is not None and now.deltas:
                try:
                    self._adopt([now])
                except _OVERTAKEN as error:
                    LOG.warning("ARQ %s was bound meanwhile, and could not be charged: %s", one.arq, error)
                    continue
                LOG.info("ARQ %s was bound meanwhile, and is charged %s.", one.arq, shown(now.wanted))


def _batches(differences: Iterable[Difference]) -> Iterator[list[Difference]]:
    """So many of one project at a time, an instance's together."""

    def place(one: Difference) -> tuple[str, str]:
        if one.attached is None:
            return one.charges[0].project_id, ""
        return str(one.attached.project_id), str(one.attached.instance)

    in_order = sorted(differences, key=place)
    for _, some in itertools.groupby(in_order, key=lambda one: place(one)[0]):
        of_project = list(some)
        for start in range(0, len(of_project), _BATCH_ROWS):
            yield of_project[start : start + _BATCH_ROWS]
