# SPDX-License-Identifier: Apache-2.0
"""The expiry is set and compared by the clock of the database, with microseconds."""

from __future__ import annotations

import datetime

from tests import base, held_clock
from tests.functional.test_expiry import HOUR, SECOND, UTC, ExpiryTestCase, utc_now


class TestClock(ExpiryTestCase):
    """Expiry is set and compared by the clock of the database, with microseconds."""

    def test_microseconds_are_kept(self) -> None:
        """Those of a stored time, and of one that is computed."""
        (uuid,) = self.quotas.reserve(self.context, {"gpu": 1})
        moment = datetime.datetime(2040, 5, 6, 7, 8, 9, 123456)
        self.set_expire(uuid, moment)
        self.assertEqual(moment, self.expire_of(uuid))
        lives = [datetime.timedelta(seconds=60, microseconds=117 * n) for n in range(6)]
        uuids = [self.quotas.reserve(self.context, {"gpu": 1}, ttl)[0] for ttl in lives]
        self.assertNotEqual({0}, {self.expire_of(uuid).microsecond % 1000 for uuid in uuids})

    def test_an_hour_is_an_hour(self) -> None:
        """Regardless of the time zone of the server, the session or the host."""
        for expire in (3600, HOUR, datetime.datetime.now(UTC) + HOUR, utc_now() + HOUR):
            before = utc_now()
            (uuid,) = self.quotas.reserve(self.context, {"gpu": 1}, expire)
            found = self.expire_of(uuid)
            self.assertTrue(before + HOUR - SECOND < found < utc_now() + HOUR + SECOND, found)

    def test_exact_expiry_time(self) -> None:
        """At its expiry a reservation is overdue; one microsecond earlier it is not."""
        moment = datetime.datetime(2030, 1, 2, 3, 4, 5, 250000)
        uuids = self.quotas.reserve(self.context, {"gpu": 1, "fpga": 1})
        self.set_expire(uuids[0], moment)
        self.set_expire(uuids[1], moment + datetime.timedelta(microseconds=1))
        self.useFixture(held_clock.HeldClock(self.url, moment))
        self.assertEqual(1, self.quotas.expire(base.ADMIN))
        self.assertEqual(["expired", "reserved"], self.states(*uuids))
        self.quotas.commit(self.context, uuids[1:])
