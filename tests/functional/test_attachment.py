# SPDX-License-Identifier: Apache-2.0
"""The context manager ``attachment``: what is charged after the block, for each of its outcomes."""

from __future__ import annotations

import datetime
from unittest import mock

import testscenarios

import cyborg_quota
from cyborg_quota import exceptions
from tests import base

load_tests = testscenarios.load_tests_apply_scenarios


class AttachFailed(Exception):
    """The error that the block raises."""


class TestAttachment(base.LedgerTestCase):
    def attachment(self, **named: object) -> object:
        return cyborg_quota.attachment(
            self.quotas, self.context, {"gpu": 2, "fpga": 1}, **{"consumer": "arq", **named}
        )

    def assert_charged(self, used: int, reserved: int) -> None:
        self.assertEqual((2 * used, 2 * reserved), self.figures())
        self.assertEqual((used, reserved), self.figures(resource="fpga"))

    def test_success(self) -> None:
        with self.attachment(group="instance") as uuids:
            self.assert_charged(0, 1)
            self.assertEqual(["reserved"] * 2, self.states(*uuids))
        self.assert_charged(1, 0)
        rows = self.quotas.list_reservations(base.ADMIN, consumer="arq", group="instance")
        self.assertEqual(uuids, [row.uuid for row in rows])

    def test_block_raises(self) -> None:
        failure = AttachFailed()
        with self.assertRaisesRegex(AttachFailed, "") as caught, self.attachment() as uuids:
            raise failure
        self.assertIs(failure, caught.exception)
        self.assertEqual(["rolled_back"] * 2, self.states(*uuids))
        self.assert_charged(0, 0)

    def test_block_is_interrupted(self) -> None:
        """A block can also be ended by a BaseException."""
        for kind in (KeyboardInterrupt, SystemExit, GeneratorExit):
            with self.assertRaisesRegex(kind, ""), self.attachment():
                raise kind
            self.assert_charged(0, 0)

    def test_over_quota(self) -> None:
        """The block is not run."""
        self.limits.limits[None, "gpu"] = 1
        with self.assertRaisesRegex(exceptions.OverQuota, "gpu"), self.attachment():
            self.fail("the block ran")
        self.assert_charged(0, 0)

    def test_again_after_success(self) -> None:
        """A second delivery of the same call: charged once."""
        for _ in range(2):
            with self.attachment():
                pass
        self.assert_charged(1, 0)

    def test_again_after_failure(self) -> None:
        with self.assertRaisesRegex(AttachFailed, ""), self.attachment():
            raise AttachFailed
        with self.attachment():
            pass
        self.assert_charged(1, 0)

    def test_two_concurrent_deliveries(self) -> None:
        with self.attachment() as first, self.attachment() as second:
            self.assertEqual(first, second)
        self.assert_charged(1, 0)

    def test_committed_by_another_delivery_and_block_raises(self) -> None:
        """The other delivery has attached the device: its charge stays."""
        with self.assertRaisesRegex(AttachFailed, ""), self.attachment() as uuids:
            self.quotas.commit(self.context, uuids)
            raise AttachFailed
        self.assertEqual(["committed"] * 2, self.states(*uuids))
        self.assert_charged(1, 0)

    def test_committed_by_another_delivery(self) -> None:
        with self.attachment() as uuids:
            self.quotas.commit(self.context, uuids)
        self.assert_charged(1, 0)

    def test_expired_in_the_block(self) -> None:
        for is_swept in (False, True):
            with self.attachment(consumer=f"arq {is_swept}") as uuids:
                self.make_overdue(*uuids)
                if is_swept:
                    self.quotas.expire(base.ADMIN)
            self.assertEqual(["expired"] * 2, self.states(*uuids))
        self.assert_charged(2, 0)

    def test_rolled_back_in_the_block(self) -> None:
        with self.attachment() as uuids:
            self.quotas.rollback(self.context, uuids)
        self.assertEqual(["rolled_back"] * 2, self.states(*uuids))
        self.assert_charged(1, 0)

    def test_rolled_back_and_purged_in_the_block(self) -> None:
        with self.attachment() as uuids:
            self.quotas.rollback(self.context, uuids)
            self.quotas.purge(base.ADMIN, 0)
        self.assert_charged(1, 0)

    def test_one_of_two_rolled_back_in_the_block(self) -> None:
        """The other half is rolled back too, and the whole is reserved and committed again."""
        with self.attachment() as uuids:
            self.quotas.rollback(self.context, uuids[:1])
        self.assertEqual(["rolled_back", "rolled_back"], self.states(*uuids))
        self.assert_charged(1, 0)

    def test_second_reserve_refused(self) -> None:
        """The device is attached, but cannot be charged: the caller gets the error, and detaches."""
        with self.assertRaisesRegex(exceptions.OverQuota, "gpu"), self.attachment() as uuids:
            self.make_overdue(*uuids)
            self.quotas.expire(base.ADMIN)
            self.limits.limits[None, "gpu"] = 1
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

    def test_expired_in_the_block_which_raises(self) -> None:
        with self.assertRaisesRegex(AttachFailed, ""), self.attachment() as uuids:
            self.make_overdue(*uuids)
            raise AttachFailed
        self.assertEqual(["expired"] * 2, self.states(*uuids))
        self.assert_charged(0, 0)

    def test_rollback_fails(self) -> None:
        """The error of the rollback must not hide that of the block; the reservation expires."""
        for failure in (exceptions.DatabaseUnavailable("away", 6.0), RuntimeError("a bug")):
            with (
                mock.patch.object(self.engine, "rollback", side_effect=failure) as rollback,
                self.assertRaisesRegex(AttachFailed, "first"),
                self.attachment(),
            ):
                raise AttachFailed("first")
            rollback.assert_called_once()
        self.assert_charged(0, 1)

    def test_commit_fails(self) -> None:
        """The caller gets the error; the reservation is unchanged."""
        failure = exceptions.DatabaseUnavailable("away", 6.0)
        with (
            mock.patch.object(self.engine, "commit", side_effect=failure),
            self.assertRaisesRegex(exceptions.DatabaseUnavailable, "away"),
            self.attachment(),
        ):
            pass
        self.assert_charged(0, 1)

    def test_expire_and_project(self) -> None:
        with cyborg_quota.attachment(
            self.quotas, base.ADMIN, {"gpu": 1}, consumer="arq", expire=60, project_id="p1"
        ) as uuids:
            (row,) = self.quotas.list_reservations(base.ADMIN, reservations=uuids)
            self.assertEqual("p1", row.project_id)
            self.assertLess(row.expire - row.created_at, datetime.timedelta(seconds=61))
        self.assertEqual((1, 0), self.figures())
