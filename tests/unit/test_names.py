# SPDX-License-Identifier: Apache-2.0
"""Names, amounts and expiries, without a database."""

from __future__ import annotations

import datetime
import logging
import unicodedata

import fixtures
from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from cyborg_quota import exceptions, validation
from cyborg_quota.types import MAX_AMOUNT, MAX_NAME_BYTES, MAX_NAME_CHARS

SECOND = datetime.timedelta(seconds=1)


class TestNames(base.BaseTestCase):
    @given(st.text(max_size=300))
    def test_valid_names_can_be_stored_and_logged(self, text: str) -> None:
        try:
            name = validation.check_name("consumer", text)
        except exceptions.InvalidName as error:
            self.assertEqual(("consumer", text), (error.field, error.value))
            self.assertTrue(str(error).isascii() and str(error).isprintable())
            return
        self.assertEqual(text, name)
        self.assertIs(str, type(name))
        self.assertTrue(0 < len(name) <= MAX_NAME_CHARS)
        self.assertLessEqual(len(name.encode()), MAX_NAME_BYTES)
        self.assertEqual(name.strip(), name)
        self.assertEqual(1, len(name.splitlines()))
        self.assertFalse({unicodedata.category(char) for char in name} & {"Cc", "Cs"})

    @given(st.text(st.characters(categories=("L", "N", "P", "S", "M")), min_size=1, max_size=190))
    def test_ordinary_text_passes_as_it_is(self, text: str) -> None:
        self.assertEqual(text, validation.check_name("group", text))

    def test_the_bounds(self) -> None:
        for good in ("a" * 255, "\u00e9" * 255, "\u4e00" * 255, "\U00020000" * 191, "a b", "-"):
            self.assertEqual(good, validation.check_name("group", good))
        for bad in ("a" * 256, "a" * 254 + " a", "\U00020000" * 192, "\U00020000" * 255):
            self.assertRaises(exceptions.InvalidName, validation.check_name, "group", bad)

    def test_no_log_line_is_forged(self) -> None:
        """A log line with the error stays one line, whatever the name."""
        log = self.useFixture(fixtures.FakeLogger(format="%(message)s"))
        try:
            validation.check_name("group", "x\n2030-01-01 CRITICAL all is lost\r\u2028\u0085\x1b[2J")
        except exceptions.InvalidName as error:
            logging.getLogger("test").error("%s", error)
        self.assertEqual(1, len(log.output.splitlines()))


class TestDeltas(base.BaseTestCase):
    @given(st.integers())
    def test_integers(self, delta: int) -> None:
        if delta and abs(delta) <= MAX_AMOUNT:
            self.assertEqual(delta, validation.check_delta("gpu", delta))
        else:
            self.assertRaises(exceptions.InvalidDelta, validation.check_delta, "gpu", delta)

    @given(st.one_of(st.floats(), st.text(), st.booleans(), st.none(), st.binary(), st.decimals()))
    def test_invalid(self, delta: object) -> None:
        self.assertRaises(exceptions.InvalidDelta, validation.check_delta, "gpu", delta)

    @given(st.dictionaries(st.text(max_size=5), st.integers(1, 5), min_size=1))
    def test_unknown_resources_are_all_named(self, deltas: dict[str, int]) -> None:
        unknown = sorted(set(deltas) - {"gpu"})
        try:
            self.assertEqual(deltas, validation.check_deltas(deltas, {"gpu": None}))
        except exceptions.UnknownResource as error:
            self.assertEqual(unknown, error.unknown)
        else:
            self.assertEqual([], unknown)


class TestExpiry(base.BaseTestCase):
    @given(st.integers(1, validation.MAX_EXPIRE_SECONDS))
    def test_seconds_and_timedelta_mean_the_same(self, seconds: int) -> None:
        expected = seconds * 1_000_000
        delta = datetime.timedelta(seconds=seconds)
        self.assertEqual(expected, validation.expire_microseconds(seconds, 7))
        self.assertEqual(expected, validation.expire_microseconds(delta, 7))
        self.assertEqual(expected, validation.expire_microseconds(None, seconds))

    @given(st.timedeltas(SECOND * 60, SECOND * validation.MAX_EXPIRE_SECONDS - SECOND), st.timezones())
    def test_moments_ahead(self, ahead: datetime.timedelta, zone: datetime.tzinfo) -> None:
        now = datetime.datetime.now(datetime.timezone.utc)
        utc = now + ahead
        for moment in (utc, utc.replace(tzinfo=None), utc.astimezone(zone)):
            ttl = datetime.timedelta(microseconds=validation.expire_microseconds(moment, 7))
            self.assertLessEqual(ahead - 30 * SECOND, ttl)
            self.assertLessEqual(ttl, ahead)

    @given(
        st.one_of(
            st.integers(max_value=0),
            st.integers(min_value=validation.MAX_EXPIRE_SECONDS + 1),
            st.timedeltas(max_value=datetime.timedelta(0)),
            st.datetimes(
                max_value=datetime.datetime(2020, 1, 1), timezones=st.timezones() | st.none()
            ),
            st.floats(),
            st.text(),
            st.booleans(),
            st.dates(),
        )
    )
    def test_invalid(self, expire: object) -> None:
        error = self.assertRaises(
            exceptions.InvalidReservationExpiration, validation.expire_microseconds, expire, 7
        )
        self.assertIs(expire, error.expire)
