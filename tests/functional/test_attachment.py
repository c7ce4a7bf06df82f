# SPDX-License-Identifier: Apache-2.0
"""The context manager ``attachment``: what is charged after the block, for each of its outcomes."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable
from unittest import mock

import cyborg_quota
from cyborg_quota import exceptions
from tests import base, fixtures


class AttachFailed(Exception):
    """The error that the block raises."""


class TestAttachment(base.LedgerTestCase):
    scenarios = fixtures.ON_SQLITE

    def attachment(self, context: base.Context | None = None, **named: object) -> object:
        deltas = {"gpu": 2, "fpga": 1}
        return cyborg_quota.attachment(self.quotas, context or self.context, deltas, **{"consumer": "arq", **named})

    def assert_charged(self, used: int, reserved: int) -> None:
        self.assertEqual((2 * used, 2 * reserved), self.figures())
        self.assertEqual((used, reserved), self.figures(resource="fpga"))

    def test_success(self) -> None:
        with self.attachment(base.ADMIN, project_id="p1", group="instance", expire=60) as uuids:
            self.assert_charged(0, 1)
            rows = self.quotas.list_reservations(base.ADMIN, "p1", consumer="arq", group="instance")
            self.assertEqual([(uuid, "reserved") for uuid in uuids], [(row.uuid, row.state) for row in rows])
            self.assertLess(rows[0].expire - rows[0].created_at, datetime.timedelta(seconds=61))
        self.assert_charged(1, 0)

    def test_block_raises(self) -> None:
        """Also a BaseException."""
        for kind in (AttachFailed, KeyboardInterrupt, SystemExit, GeneratorExit):
            failure = kind()
            with self.assertRaisesRegex(kind, "") as caught, self.attachment() as uuids:
                raise failure
            self.assertIs(failure, caught.exception)
            self.assertEqual(["rolled_back"] * 2, self.states(*uuids))
            self.assert_charged(0, 0)

    def test_again(self) -> None:
        """A second delivery of the same call, after a failure, after a success, and at the same time: charged once."""
        for failure in (AttachFailed, None, None):
            with contextlib.suppress(AttachFailed), self.attachment():
                if failure is not None:
                    raise failure
        self.assert_charged(1, 0)
        with self.attachment(consumer="two") as first, self.attachment(consumer="two") as second:
            self.assertEqual(first, second)
        self.assert_charged(2, 0)

    def test_ended_in_the_block(self) -> None:
        """By another call. What another delivery has committed stays, and what was lost is charged again."""
        quotas, context = self.quotas, self.context
        acts: dict[str, tuple[Callable[[list[str]], object], str, int]] = {
            "committed": (lambda uuids: quotas.commit(context, uuids), "committed", 1),
            "rolled back": (lambda uuids: quotas.rollback(context, uuids), "rolled_back", 1),
            "one of two rolled back": (lambda uuids: quotas.rollback(context, uuids[:1]), "rolled_back", 1),
            "committed, raises": (lambda uuids: quotas.commit(context, uuids), "committed", 1),
            "overdue": (lambda uuids: self.make_overdue(*uuids), "expired", 1),
            "purged": (lambda uuids: (quotas.rollback(context, uuids), quotas.purge(base.ADMIN, 0)), "", 1),
            "expired": (lambda uuids: (self.make_overdue(*uuids), quotas.expire(base.ADMIN)), "expired", 1),
            "overdue, raises": (lambda uuids: self.make_overdue(*uuids), "expired", 0),
        }
        for name, (act, state, charged) in acts.items():
            with self.subTest(name), contextlib.suppress(AttachFailed), self.attachment(consumer=name) as uuids:
                act(uuids)
                if name.endswith("raises"):
                    raise AttachFailed
            rows = self.engine.list_reservations(base.ADMIN, reservations=uuids)
            self.assertEqual([state] * 2 if state else [], [row.state for row in rows], name)
            self.assert_charged(charged, 0)
            quotas.release(context, consumer=name)

    def test_refused(self) -> None:
        """If the second reserve is, the device is attached, but cannot be charged: the caller detaches.

        If the first one is, the block is not run.
        """
        with self.assertRaisesRegex(exceptions.OverQuota, "gpu"), self.attachment() as uuids:
            self.make_overdue(*uuids)
            self.quotas.expire(base.ADMIN)
            self.limits.own[None, "gpu"] = 1
        with self.assertRaisesRegex(exceptions.OverQuota, "gpu"), self.attachment():
            self.fail("the block ran")
        self.assert_charged(0, 0)

    def test_released_in_the_block(self) -> None:
        """Attached by one call and detached by another: it is not charged again."""
        with (
            self.assertRaisesRegex(exceptions.ReservationReleased, "released"),
            self.attachment() as uuids,
        ):
            self.quotas.commit(self.context, uuids)
            self.quotas.release(self.context, consumer="arq")
        self.assert_charged(0, 0)

    def test_the_rollback_or_the_commit_fails(self) -> None:
        """The error of the rollback must not hide that of the block; that of a commit is raised."""
        away = exceptions.DatabaseUnavailable("away", 6.0)
        for failure in (away, RuntimeError("a bug")):
            with (
                mock.patch.object(self.engine, "rollback", side_effect=failure) as rollback,
                self.assertRaisesRegex(AttachFailed, "first"),
                self.attachment(),
            ):
                raise AttachFailed("first")
            rollback.assert_called_once()
        with (
            mock.patch.object(self.engine, "commit", side_effect=away),
            self.assertRaisesRegex(exceptions.DatabaseUnavailable, "away"),
            self.attachment(),
        ):
            pass
        self.assert_charged(0, 1)
