# SPDX-License-Identifier: Apache-2.0
"""Invalid input raises a typed error that names it, and nothing is written."""

from __future__ import annotations

import datetime
import enum
import types
from collections.abc import Callable, Iterator

from cyborg_quota import Claim, exceptions
from cyborg_quota.types import MAX_AMOUNT
from tests import base, fixtures, hooks, on_sqlite

UTC = datetime.timezone.utc
CENTURY = datetime.timedelta(days=100 * 365)

BAD_NAMES: dict[str, object] = {
    "empty": "",
    "blank": " ",
    "padded in front": " a",
    "padded behind": "a ",
    "padded with a no-break space": "a\u00a0",
    "NUL": "a\0b",
    "newline": "a\nERROR forged",
    "carriage return": "a\rb",
    "escape": "a\x1b[31mb",
    "line separator": "a\u2028b",
    "next line": "a\u0085b",
    "surrogate": "a\ud800b",
    "256 characters": "a" * 256,
    "256 digits of another script": "\u0663" * 256,
    "a number": 7,
    "bytes": b"abc",
    "a boolean": True,
    "a list": ["a"],
}


class Index:
    """An integer like those of numpy: no int, but it has __index__."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


class NoRepr:
    """Its repr and its str raise an error."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


class NoOffset(datetime.tzinfo):
    """A time zone without an offset: such a datetime counts as naive."""

    def utcoffset(self, _moment: datetime.datetime | None) -> None:
        return None


class FailAfterOne:
    """Claims, of which the second one cannot be read."""

    def __iter__(self) -> Iterator[Claim]:
        yield base.claim("a", gpu=1)
        raise KeyError("from the caller")


class InputTestCase(base.LedgerTestCase):
    """``refused`` asserts that nothing was written."""

    def setUp(self) -> None:
        super().setUp()
        (self.uuid,) = self.quotas.reserve(self.context, {"gpu": 1}, consumer="c", group="g")
        self.before = hooks.tables(self.sql)

    def refused(self, expected: type[Exception], call: str, *args: object, **named: object) -> Exception:
        error: Exception = self.assertRaises(expected, getattr(self.engine, call), self.context, *args, **named)
        self.assertTrue(str(error).isprintable(), ascii(str(error)))
        self.assertLess(len(str(error)), 500)
        return error

    def assert_untouched(self) -> None:
        self.assertEqual(self.before, hooks.tables(self.sql))


class TestArguments(InputTestCase):
    """Resources, amounts, claims and names; and the arguments of the admin calls."""

    scenarios = fixtures.ON_SQLITE  # refused before the database is used

    def test_unknown_resource(self) -> None:
        for call in ("reserve", "check"):
            error = self.refused(exceptions.UnknownResource, call, {"vpu": 1, "gpu": 1, "": 1})
            self.assertEqual((["", "vpu"], ["fpga", "gpu", "gpu.A100"]), (error.unknown, error.known))
            self.assertIn("'vpu'", str(error))
        for resource in (None, 7, b"gpu", ("gpu",), "GPU", "gpu ", "g\npu", "g\ud800"):
            self.refused(exceptions.UnknownResource, "reserve", {resource: 1})
        self.assert_untouched()

    def test_amount_that_is_no_integer_or_below_1(self) -> None:
        """The message of the latter names the calls that give back, and that change an amount."""
        bad = (
            True, False, 1.0, 1.5, float("nan"), float("inf"), "1", "", None, 0, Index(0), [1], b"1",
            1j, datetime.timedelta(1), MAX_AMOUNT + 1, -1, -MAX_AMOUNT - 1, -(2**31), 2**63, 2**64,
            Index(2**40), 10**400, -(10**5000), NoRepr(),
        )  # fmt: skip
        calls: list[Callable[[dict[str, object]], Exception]] = [
            lambda deltas: self.refused(exceptions.InvalidDelta, "reserve", deltas),
            lambda deltas: self.refused(exceptions.InvalidDelta, "check", deltas),
            lambda deltas: self.refused(exceptions.InvalidDelta, "resize", deltas, consumer="c"),
            lambda deltas: self.assertRaises(
                exceptions.InvalidDelta, self.engine.adopt, base.ADMIN, [Claim("a", deltas)], "p1"
            ),
        ]
        for refuse in calls:
            for delta in bad:
                error = refuse({"fpga": 1, "gpu": delta})
                self.assertEqual(("gpu", True), (error.resource, error.delta is delta))
                self.assertIn("'gpu'", str(error))
            for text in ("-1", "release(consumer=...)", "release(reservations=[...])", "resize"):
                self.assertIn(text, str(refuse({"gpu": -1})))
        self.assert_untouched()

    def test_amount_with_an_index(self) -> None:
        """In any mapping."""
        self.quotas.commit(self.context, self.quotas.reserve(self.context, types.MappingProxyType({"gpu": Index(3)})))
        self.assertEqual((3, 1), self.figures())

    def test_deltas_of_the_wrong_shape(self) -> None:
        for deltas in ({}, None, "gpu", ["gpu"], [("gpu", 1)], 1, {"gpu"}, iter(())):
            for call in ("reserve", "check"):
                self.refused(exceptions.InvalidClaim, call, deltas)
            self.refused(exceptions.InvalidClaim, "reserve_many", [Claim("x", deltas)])
        self.assert_untouched()

    def test_a_name_that_is_an_enumeration_s_member(self) -> None:
        """A str enumeration is equal to the registered name: it must be charged as that, and under its limit."""

        class Kind(str, enum.Enum):
            GPU = "gpu"

        self.limits.own[None, "gpu"] = 1
        error = self.assertRaises(exceptions.OverQuota, self.quotas.reserve, self.context, {Kind.GPU: 1})
        overs = [*error.overs, *self.quotas.check(self.context, {Kind.GPU: 1})]
        self.assertEqual(["gpu", "gpu"], [over.resource for over in overs])
        self.assertRaises(
            exceptions.ReservationConflict,
            self.quotas.reserve,
            self.context,
            {Kind.GPU: 5},
            consumer=type("Name", (str,), {"__str__": lambda self: "other"})("c"),
        )
        self.assert_untouched()

    def test_bad_claims(self) -> None:
        """Nothing, what is no iterable, something that is no claim, or claims that are wrong together."""
        good = base.claim("a", gpu=1)
        twice = [base.claim("twice", gpu=1), base.claim("b", gpu=1), base.claim("twice", fpga=1)]
        self.assertIn("twice", str(self.refused(exceptions.InvalidClaim, "reserve_many", twice)))
        for kind, claims in (
            *((exceptions.InvalidClaim, none) for none in ([], (), iter(()), None, 7, good)),
            *((exceptions.InvalidClaim, [good, wrong]) for wrong in (None, {"gpu": 1}, ("a", {"gpu": 1}), "a")),
            (exceptions.InvalidClaim, twice),
            (exceptions.InvalidDelta, [base.claim("a", gpu=MAX_AMOUNT), base.claim("b", gpu=1)]),
            (KeyError, FailAfterOne()),
        ):
            self.refused(kind, "reserve_many", claims)
            self.assertRaises(kind, self.engine.adopt, base.ADMIN, claims, "p1")
        self.assert_untouched()
        nameless = [base.claim(None, gpu=1), base.claim(None, gpu=1)]
        self.assertEqual(2, len(set(self.quotas.reserve_many(self.context, nameless))))

    def test_bad_names(self) -> None:
        for why, name in BAD_NAMES.items():
            for field in ("consumer", "group"):
                error = self.refused(exceptions.InvalidName, "reserve", {"gpu": 1}, **{field: name})
                self.assertEqual((field, True), (error.field, error.value is name), why)
                self.assertIn(field, str(error))
                for call in TestSelections.CALLS:
                    self.refused(exceptions.InvalidName, call, **{field: name})
            error = self.assertRaises(exceptions.InvalidName, self.engine.register_resource, name)
            self.assertEqual("resource", error.field, why)
        for value in (10**5000, NoRepr()):  # that cannot be printed
            self.refused(exceptions.InvalidName, "reserve", {"gpu": 1}, consumer=value)
        # PostgreSQL could index 255 characters of four bytes in one name, but not in three.
        error = self.refused(exceptions.InvalidName, "reserve", {"gpu": 1}, consumer="\U00020000" * 255)
        self.assertIn("1020 bytes", str(error))
        self.assert_untouched()

    def test_bad_projects(self) -> None:
        for why, name in BAD_NAMES.items():
            own_context = base.Context(name)  # type: ignore[arg-type]
            for context, project_id in ((own_context, None), (own_context, name), (base.ADMIN, name)):
                for call, args in (
                    ("reserve", ({"gpu": 1},)),
                    ("get_usages", ()),
                    ("check", ({"gpu": 1},)),
                    ("commit", ([self.uuid],)),
                ):
                    error = self.assertRaises(
                        exceptions.InvalidName,
                        getattr(self.engine, call),
                        context,
                        *args,
                        project_id=project_id,
                    )
                    self.assertEqual("project_id", error.field, why)
            for call in ("list_usages", "list_reservations"):
                self.assertRaises(exceptions.InvalidName, getattr(self.engine, call), base.ADMIN, name)
        self.assert_untouched()

    def test_purge_and_list_reservations(self) -> None:
        for age in (None, True, 1.5, "7", -1, 100 * 365 * 86400 + 1, 10**5000):
            self.assertRaises(exceptions.InvalidRequest, self.engine.purge, base.ADMIN, age)
        call = self.engine.list_reservations
        for named in (
            {"state": "no state"}, {"state": ""}, {"state": 7}, {"state": ["reserved"]},
            {"reservations": self.uuid}, {"reservations": 7}, {"reservations": [7]},
            {"reservations": ["a\0"]}, {"consumer": ""}, {"group": " g"},
            {"limit": -1}, {"limit": "1"}, {"limit": True}, {"limit": 1.5}, {"limit": 2**70},
        ):  # fmt: skip
            self.assertRaises(exceptions.InvalidRequest, call, base.ADMIN, **named)
        self.quotas.reserve(self.context, {"gpu": 1, "fpga": 1})
        for limit, count in ((0, 0), (1, 1), (2, 2), (10**6, 3), (None, 3)):
            self.assertEqual(count, len(call(base.ADMIN, limit=limit)))
        self.assertEqual([], call(base.ADMIN, reservations=[]))


class TestSelections(InputTestCase):
    """The reservations that a settling call selects, and their lifetime."""

    CALLS = ("commit", "rollback", "release", "extend")

    @on_sqlite
    def test_none_or_several(self) -> None:
        invalid: list[dict[str, object]] = [
            {},
            {"reservations": [self.uuid], "consumer": "c"},
            {"reservations": [self.uuid], "group": "g"},
            {"consumer": "c", "group": "g"},
            {"reservations": [self.uuid], "consumer": "c", "group": "g"},
            {"reservations": [], "consumer": "c"},
            *({"reservations": wrong} for wrong in ([], (), iter(()), {}, "", self.uuid, 7, True, object())),
        ]
        for call in self.CALLS:
            for named in invalid:
                self.refused(exceptions.InvalidSelection, call, **named)
        self.assert_untouched()

    def test_invalid_ids(self) -> None:
        bad = (
            None, 7, True, b"abc", "", " ", self.uuid + " ", " " + self.uuid, self.uuid.upper() + "x",
            self.uuid[:-1], self.uuid + "0", "x" * 10_000, "a\0", "a\n", "\ud800", "\u0663" * 36,
            [self.uuid], {"uuid": self.uuid}, 10**5000, NoRepr(), "' OR 1=1 --", "%",
        )  # fmt: skip
        for call in self.CALLS:
            for uuid in bad:
                self.assertIs(uuid, self.refused(exceptions.ReservationNotFound, call, [self.uuid, uuid]).uuid)
        unknown = [f"{number:036d}" for number in range(5_000)]
        error = self.refused(exceptions.ReservationNotFound, "rollback", [self.uuid, *unknown])
        self.assertEqual(unknown[0], error.uuid)
        self.assert_untouched()

    def test_ids_from_any_iterable(self) -> None:
        for reservations in ((self.uuid,), {self.uuid}, iter([self.uuid]), {self.uuid: 1}):
            self.quotas.extend(self.context, reservations)
        self.quotas.commit(self.context, [self.uuid, self.uuid])
        self.assertEqual(["committed"], self.states(self.uuid))

    @on_sqlite
    def test_bad_expirations(self) -> None:
        now = datetime.datetime.now(UTC)
        bad = (
            True, False, 1.0, 0.5, float("nan"), "60", "", b"60", [60], Index(60), 0, -1,
            -(10**5000), 10**5000, 100 * 365 * 86400 + 1, 2**63,
            datetime.timedelta(0), datetime.timedelta(microseconds=-1), datetime.timedelta.max,
            datetime.timedelta.min, CENTURY + datetime.timedelta(microseconds=1),
            now - datetime.timedelta(seconds=1), now.replace(tzinfo=None) - datetime.timedelta(1),
            now + CENTURY + datetime.timedelta(days=1),
            datetime.datetime.min, datetime.datetime.max,
            datetime.datetime.min.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=14))),
            datetime.datetime.max.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=-12))),
            now.date() + datetime.timedelta(days=1), datetime.time(12), NoRepr(),
        )  # fmt: skip
        for expire in bad:
            for call, args in (
                ("reserve", ({"gpu": 1},)),
                ("reserve_many", ([base.claim("x", gpu=1)],)),
                ("extend", ([self.uuid],)),
            ):
                error = self.refused(exceptions.InvalidReservationExpiration, call, *args, expire=expire)
                self.assertIs(expire, error.expire)
        self.assert_untouched()

    def test_good_expirations(self) -> None:
        ahead = datetime.datetime.now(UTC) + datetime.timedelta(hours=1)
        east = datetime.timezone(datetime.timedelta(hours=14))
        hour = datetime.timedelta(hours=1)
        for expire, ttl in (
            (3600, hour),
            (hour, hour),
            (ahead, hour),
            (ahead.replace(tzinfo=None), hour),
            (ahead.astimezone(east), hour),
            (ahead.replace(tzinfo=NoOffset()), hour),
            (None, datetime.timedelta(days=1)),
            (100 * 365 * 86400, CENTURY),
            (CENTURY, CENTURY),
        ):
            (uuid,) = self.quotas.reserve(self.context, {"gpu": 1}, expire)
            (row,) = self.quotas.list_reservations(base.ADMIN, reservations=[uuid])
            self.assertLess(abs(row.expire - row.created_at - ttl), datetime.timedelta(seconds=20))


class TestCharsetInTheUrl(base.LedgerTestCase):
    """OpenStack's URLs often end with ``?charset=utf8``, which cannot encode all names."""

    scenarios = [scenario for scenario in fixtures.SCENARIOS if scenario[0] == "mariadb"]

    def test_it_is_not_used(self) -> None:
        context = base.Context("\u0416\U0001f600")
        for charset in ("utf8", "latin1"):
            url = self.sql.url.update_query_dict({"charset": charset})
            engine = fixtures.open_engine(self, url.render_as_string(hide_password=False))
            engine.commit(context, engine.reserve(context, {"gpu": 1}, consumer=f"{charset} {context.project_id}"))
        self.assertEqual((2, 0), self.figures(context.project_id))
