# SPDX-License-Identifier: Apache-2.0
"""The reader of traces, and the count of outcomes, without a database."""

from __future__ import annotations

import hashlib
import pathlib
import random

import fixtures as fx
from hypothesis import given, settings
from hypothesis import strategies as st
from oslotest import base

from cyborg_quota.replay import charts, totals
from cyborg_quota.replay.traces import Event, Trace, TraceError

HEADER = b"time,event,consumer,project,resource,amount\n"
EXAMPLE = pathlib.Path(__file__).parents[2] / "etc/cyborg_quota/traces/example.csv"


class TraceCase(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = pathlib.Path(self.useFixture(fx.TempDir()).path) / "trace.csv"

    def trace(self, *lines: bytes, header: bytes = HEADER) -> Trace:
        self.path.write_bytes(header + b"".join(lines))
        return Trace(str(self.path))

    def wrong(self, reason: str, *lines: bytes, line: int, header: bytes = HEADER) -> None:
        """Assert that reading ends at ``line`` with ``reason``, after all earlier events were returned."""
        found = []
        error = self.assertRaises(TraceError, lambda: found.extend(self.trace(*lines, header=header)))
        self.assertEqual(line, error.line)
        self.assertEqual(max(line - 2, 0), len(found))
        self.assertIn(f"trace.csv, line {line}: ", str(error))
        self.assertIn(reason, str(error))


class ReaderTest(TraceCase):
    def test_events_in_order_as_often_as_wanted(self) -> None:
        trace = self.trace(b"0,reserve,c,p,gpu,1\n", b'1.25,release,"c,d",p q,gpu.A100,2147483647\n')
        expected = [
            Event(2, 0.0, "reserve", "c", "p", "gpu", 1),
            Event(3, 1.25, "release", "c,d", "p q", "gpu.A100", 2147483647),
        ]
        self.assertEqual([expected, expected], [list(trace), list(trace)])
        self.assertEqual((3, hashlib.sha256(self.path.read_bytes()).hexdigest()), (trace.lines, trace.digest))
        with self.path.open("ab") as file:  # what is appended while it is read is ignored
            file.write(b"2,commit,c,p,gpu,1\n")
        self.assertEqual(expected, list(trace))

    def test_other_line_ends_and_a_trace_without_events(self) -> None:
        with_mark = b"\xef\xbb\xbf" + HEADER.replace(b"\n", b"\r\n")
        for header, lines in ((with_mark, [b"0,reserve,c,p,gpu,1"]), (HEADER, []), (HEADER.rstrip(), [])):
            trace = self.trace(*lines, header=header)
            self.assertEqual((["gpu"] * len(lines), 1 + len(lines)), ([one.resource for one in trace], trace.lines))

    def test_the_header_is_required(self) -> None:
        for header in (b"", b"\n", b"0,reserve,c,p,gpu,1\n", HEADER.upper(), b"time,event\n", b"\0", b'"time\n'):
            self.path.write_bytes(header)
            error = self.assertRaises(TraceError, list, Trace(str(self.path)))
            self.assertEqual(1, error.line)

    def test_wrong_lines(self) -> None:
        good = b"5,reserve,c,p,gpu,1\n"
        for reason, bad in (
            ("5 columns, not 6", b"5,reserve,c,p,gpu\n"),
            ("7 columns, not 6", b"5,reserve,c,p,gpu,1,\n"),
            ("0 columns, not 6", b"\n"),
            ("event 'attach' is none of", b"5,attach,c,p,gpu,1\n"),
            ("event 'Reserve' is none of", b"5,Reserve,c,p,gpu,1\n"),
            ("amount '0' is not", b"5,reserve,c,p,gpu,0\n"),
            ("amount '-1' is not", b"5,reserve,c,p,gpu,-1\n"),
            ("amount '-2147483648' is not", b"5,reserve,c,p,gpu,-2147483648\n"),
            ("amount '--1' is not", b"5,reserve,c,p,gpu,--1\n"),
            ("amount '1.5' is not", b"5,reserve,c,p,gpu,1.5\n"),
            ("amount ' 1' is not", b"5,reserve,c,p,gpu, 1\n"),
            ("amount '2147483648' is not", b"5,reserve,c,p,gpu,2147483648\n"),
            ("amount '" + "9" * 37 + "...' is not", b"5,reserve,c,p,gpu," + b"9" * 5000 + b"\n"),
            ("time 4 is before 5", b"4,reserve,c,p,gpu,1\n"),
            ("time 'x' is not", b"x,reserve,c,p,gpu,1\n"),
            ("time 'nan' is not", b"nan,reserve,c,p,gpu,1\n"),
            ("time '-1' is not", b"-1,reserve,c,p,gpu,1\n"),
            ("Invalid consumer '': ", b"5,reserve,,p,gpu,1\n"),
            ("Invalid project ' p': ", b"5,reserve,c, p,gpu,1\n"),
            ("Invalid resource 'a\\tb': ", b"5,reserve,c,p,a\tb,1\n"),
            ("Invalid consumer ", b"5,reserve," + b"x" * 256 + b",p,gpu,1\n"),
            ("Invalid consumer '\\udcff': ", b"5,reserve,\xff,p,gpu,1\n"),
            ("", b"5,reserve,c\0,p,gpu,1\n"),
            ("columns, not 6", b"5," * 10000 + b"\n"),
            ("3 columns, not 6", b'5,reserve,"c' + b"x" * 20000 + b'"\n'),
            ("unexpected end of data", b'5,reserve,"c,p,gpu,1\n'),
            ("field larger than field limit", b'5,reserve,"c,p,gpu,1\n' + b"\n" * 200_000),
            ("Invalid consumer 'c\\n", b'5,reserve,"c\n",p,gpu,1\n'),
            ("new-line character", b"5,reserve,c\r,p,gpu,1\n"),
        ):
            self.wrong(reason, good, bad, good, line=3)
        self.wrong("1 columns, not 6", good, good, b"\xff", line=4)

    def test_not_a_file(self) -> None:
        directory = str(self.path.parent)
        for path in (str(self.path), directory, "/dev/null", "a\0b", ""):
            error = self.assertRaises(TraceError, Trace, path)
            self.assertIsNone(error.line)
        forging = str(self.path) + "\n2026 INFO all is well"
        error = self.assertRaises(TraceError, Trace, forging)
        self.assertRegex(str(error), r"\A[^\n]*No such file[^\n]*\Z")


class FuzzTest(TraceCase):
    @settings(max_examples=60, deadline=None)
    @given(st.binary(max_size=200), st.integers(0, 2**32))
    def test_any_bytes_are_events_or_a_typed_error(self, noise: bytes, seed: int) -> None:
        # A valid trace, a part of which is overwritten with noise.
        text = bytearray(EXAMPLE.read_bytes())
        start = random.Random(seed).randrange(len(text))
        text[start : start + len(noise)] = noise
        self.path.write_bytes(bytes(text))
        trace = Trace(str(self.path))
        lines = [1]
        try:
            lines.extend(event.line for event in trace)
        except TraceError as error:
            self.assertIn(error.line, (1, lines[-1] + 1))
            self.assertNotIn("\n", str(error))
        else:
            self.assertEqual(trace.lines, lines[-1])


class TallyTest(TraceCase):
    def test_outcomes(self) -> None:
        """A refused consumer's events are skipped until it is admitted; a repeated reserve charges nothing."""
        refused = [("reserve", 5), ("commit", 5), ("release", 5), ("reserve", 1), ("commit", 1)]
        repeated = [("reserve", 2), ("reserve", 2), ("rollback", 2), ("release", 2)]
        for events, refusals, outcomes, held in (
            (refused, (2,), {"refused": 1, "skipped": 2, "admitted": 1, "committed": 1}, 1),
            (repeated, (), {"admitted": 2, "rolled_back": 1, "released": 1}, 0),
        ):
            counted = totals.Tally()
            for line, (kind, amount) in enumerate(events, start=2):
                event = Event(line, 0.0, kind, "c", "p", "gpu", amount)  # type: ignore[arg-type]
                counted.add(event, is_refused=line in refusals)
            self.assertEqual((outcomes, held), (dict(counted.totals), counted.held["p", "gpu"]))
            self.assertEqual(counted.events, sum(counted.totals[outcome] for outcome in totals.OUTCOMES))

    def test_the_series_of_a_chart(self) -> None:
        trace = self.trace(
            b"0,reserve,a,p,gpu,2\n", b"1,commit,a,p,gpu,2\n", b"2,reserve,b,p,gpu,9\n", b"3,release,a,p,gpu,2\n"
        )
        (panel,) = charts.replay_panels(trace, {4}, {("p", "gpu"): 2})
        self.assertEqual(("p", "gpu", 2), (panel.project_id, panel.resource, panel.limit))
        self.assertEqual(
            ([0.0, 1.0, 2.0, 3.0], [2, 2, 2, 0], [0, 0, 1, 0], 1),
            (panel.held.times, panel.held.amounts, panel.held.refused, panel.held.total_refused),
        )
