# SPDX-License-Identifier: Apache-2.0
"""Arbitrary objects in every argument of every call: a right result, or a typed error before anything is written.

CYBORG_QUOTA_TEST_EXAMPLES_TIMES multiplies the number of calls.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import inspect
import unicodedata
from typing import Any

import hypothesis
import numpy
import testscenarios
from hypothesis import strategies as st

from cyborg_quota import Claim, Inventory, QuotaEngine, Resource, exceptions
from cyborg_quota.capacity.api import Capacity
from cyborg_quota.limits.api import Limits
from tests import base, fixtures, hooks
from tests.functional import test_limits
from tests.security import test_every_call

load_tests = testscenarios.load_tests_apply_scenarios

EXAMPLES = {"sqlite": 120, "mariadb": 15, "postgresql": 15}


class Hostile:
    """Every operation on it fails. (It can be hashed and compared: otherwise no dictionary would accept it.)"""

    def _fail(self, *_args: object) -> Any:
        raise RuntimeError("hostile")

    __repr__ = __str__ = __bool__ = __len__ = __iter__ = __int__ = __float__ = __lt__ = __getitem__ = _fail
    __contains__ = __add__ = __radd__ = __neg__ = __abs__ = _fail


class HostileText(str):
    """A str whose methods fail."""

    __slots__ = ()

    def __repr__(self) -> str:
        raise RuntimeError("hostile")

    __str__ = __repr__


class HostileIndex:
    def __index__(self) -> int:
        raise RuntimeError("hostile")


class Kind(str, enum.Enum):
    GPU = "gpu"
    P1 = "p1"


class Small(enum.IntEnum):
    ONE = 1


ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 2**31 - 1, 2**31, -(2**31), 2**63, 2**64, 10**5000, 1.0, 0.5, float("nan"),
    float("inf"), decimal.Decimal(1), fractions.Fraction(1), 1j, numpy.int64(1), numpy.int32(-1), numpy.uint64(2**63),
    numpy.float64(1), numpy.bool_(True), numpy.array([1, 2]), numpy.array(1), numpy.str_("gpu"), Small.ONE, Kind.GPU,
    "", "gpu", "p1", " ", "1", "\0", "a\0b", "\ud800", "a\nb", "x" * 255, "x" * 256, "\u4e00" * 255, b"",
    "\U0001f600" * 255,
    b"gpu", bytearray(b"x"), [], ["gpu"], (), {}, {"gpu": 1}, {"gpu": 0}, {"gpu": "1"}, {"nothing": 1}, {None: 1},
    {"gpu": None}, dict.fromkeys(map(str, range(10_000)), 1), set(), frozenset({"gpu"}), range(3), iter([]), object(),
    object, len, lambda: None, datetime.date(2030, 1, 1), datetime.timedelta(1), datetime.timedelta.max,
    datetime.datetime(2030, 1, 1), datetime.datetime.max, datetime.datetime.min, Claim("c", {"gpu": 1}),
    Claim(None, {}),
    Claim(None, None), [Claim("c", {"gpu": 1})], [Claim(1, {"gpu": 1})], [Claim("c", {"gpu": HostileIndex()})],
    Resource("gpu"), Hostile(), [Hostile()], {Hostile(): 1}, {"gpu": Hostile()}, HostileText("gpu"), HostileText("p1"),
    {HostileText("gpu"): 1}, {HostileText("none"): 1}, [HostileText("u")], HostileIndex(), Ellipsis, NotImplemented,
    memoryview(b"x"), Exception("x"), type, "%s%n%d", "{0.__class__}", "'; DROP TABLE projects; --", [[]], [{}],
    {"defaults": {"gpu": 1}}, {"defaults": Hostile()}, {"projects": [{"id": HostileText("p")}]},
]  # fmt: skip

anything = st.one_of(
    st.sampled_from(ODD),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=8),
    st.dictionaries(
        st.one_of(st.sampled_from(["gpu", "fpga", "x"]), st.text(max_size=3)), st.integers(-3, 3), max_size=3
    ),
    st.lists(
        st.builds(
            Claim, st.sampled_from([None, "c", "d", 1]), st.dictionaries(st.just("gpu"), st.integers(-2, 2), max_size=1)
        ),
        max_size=3,
    ),
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=3) | st.integers(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["id", "limits", "children", "projects", "defaults", "gpu"]), inner)
        ),
        max_leaves=8,
    ),
)
contexts = st.sampled_from(
    [base.ADMIN, base.ADMIN, base.Context("p1"), base.Context("p2"), base.Context(None), None, object(), Hostile()]
)

PARTS: dict[type, str] = {
    Limits: "limits",
    Capacity: "capacity",
}
"""The classes of the other objects whose calls are public, and the attribute of the engine for each."""
CALLS = [
    (kind, name)
    for kind in (QuotaEngine, *PARTS)
    for name in sorted(test_every_call.public(kind))
    if callable(getattr(kind, name)) and name != "close"
]
GOOD: dict[str, Any] = {
    "deltas": {"gpu": 1},
    "bundle": {"gpu": 1},
    "claims": [Claim("c", {"gpu": 1})],
    "project_id": "p1",
    "consumer": "c",
    "group": "g",
    "expire": 60,
    "limit": 5,
    "limits": {"gpu": 5},
    "resource": "gpu",
    "older_than_seconds": 0,
    "document": {"defaults": {"gpu": 5}},
    "parent_id": None,
    "resources": ["gpu"],
    "provider": "n1",
    "inventories": {"gpu": Inventory(5)},
    "amounts": {"gpu": 2},
    "to_project": "p2",
    "pod": "pod1",
}


@st.composite
def calls(draw: st.DrawFn) -> tuple[type, str, Any, dict[str, Any]]:
    """Draw a call and its arguments: most of them are valid."""
    kind, name = draw(st.sampled_from(CALLS))
    taken = list(inspect.signature(getattr(kind, name)).parameters.values())[1:]
    named = {}
    for parameter in taken:
        if parameter.name in ("context", "progress"):
            continue
        choice = draw(st.integers(0, 5))
        if choice >= 3 and parameter.name in GOOD:
            named[parameter.name] = GOOD[parameter.name]
        elif choice <= 2 or parameter.default is inspect.Parameter.empty:
            named[parameter.name] = draw(anything)
    context = draw(contexts) if any(parameter.name == "context" for parameter in taken) else None
    return kind, name, context, named


class FuzzTest(test_limits.LimitsTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.set(None, 100)
        self.engine.pods.add(base.ADMIN, "pod1")
        self.engine.capacity.add_provider(base.ADMIN, "n1", pod="pod1")
        self.engine.capacity.set_inventories(base.ADMIN, "n1", {"gpu": Inventory(9)})
        self.engine.reserve(base.Context("p1"), {"gpu": 1}, consumer="c", group="g", provider="n1")

    def test_every_call(self) -> None:
        @hypothesis.settings(
            max_examples=EXAMPLES[self.backend] * fixtures.MORE,
            deadline=None,
            database=None,
            derandomize=fixtures.MORE == 1,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(calls())
        def make_call(one: tuple[type, str, Any, dict[str, Any]]) -> None:
            kind, name, context, named = one
            on = getattr(self.engine, PARTS[kind]) if kind in PARTS else self.engine
            arguments = [context] if "context" in inspect.signature(getattr(kind, name)).parameters else []
            before = hooks.tables(self.sql)
            try:
                getattr(on, name)(*arguments, **named)
            except (exceptions.InvalidRequest, exceptions.NotAuthorized) as error:
                self.assertEqual(_settled(before), _settled(hooks.tables(self.sql)), name)
                self.assert_printable(error)
            except RuntimeError as error:
                # An error that the caller's own object raises belongs to the caller; it is raised before any write.
                self.assertEqual(("hostile",), error.args)
                self.assertEqual(_settled(before), _settled(hooks.tables(self.sql)), name)
            except exceptions.QuotaError as error:
                self.assertNotIsInstance(error, exceptions.DatabaseError, name)
                self.assert_printable(error)

        make_call()
        self.assert_invariants()
        self.assertEqual([], self.engine.audit(base.ADMIN))

    def assert_printable(self, error: exceptions.QuotaError) -> None:
        self.assertEqual(1, len(str(error).splitlines()), ascii(str(error)))
        self.assertFalse({unicodedata.category(char) for char in str(error)} & {"Cc", "Cs"}, ascii(str(error)))
        self.assertLess(len(str(error)), 2000)


def _settled(tables: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the tables without the fence, which is locked before it is known that nothing changes."""
    return {name: rows for name, rows in tables.items() if name != "fences"}
