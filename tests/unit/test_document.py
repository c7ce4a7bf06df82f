# SPDX-License-Identifier: Apache-2.0
"""The YAML document of limits: its meaning and its errors. Any text is either a document or refused."""

from __future__ import annotations

import datetime
from typing import Any

import hypothesis
import yaml
from hypothesis import strategies as st
from oslotest import base

from cyborg_quota import exceptions
from cyborg_quota.limits import document
from cyborg_quota.limits.limit_tree import InitialLimits, LimitTree
from cyborg_quota.types import MAX_LIMIT, RecordedChange, UsageKey

EXAMPLE = """
defaults: {gpu: 10, fpga: -1}
projects:
- id: atlas
  limits: {gpu: 100}
  children:
  - id: physics
    limits: {gpu: 30, fpga: 0}
    children: [{id: higgs}]
  - id: operations
- {id: alone}
"""

settings = hypothesis.settings(deadline=None, max_examples=40, derandomize=True, database=None)


def read(text: str) -> document.Document:
    return document.read(document.parse(text))


def tree(**parents: str | None) -> LimitTree:
    return LimitTree({}, {}, dict(parents), InitialLimits())


class TestRead(base.BaseTestCase):
    def refused(self, text: str, *words: str) -> None:
        error = self.assertRaises(exceptions.InvalidDocument, read, text)
        for word in words:
            self.assertIn(word, str(error))
        self.assertNotIn("\n", str(error))
        self.assertLess(len(str(error)), 500)

    def test_an_example(self) -> None:
        found = read(EXAMPLE)
        limits = {("atlas", "gpu", ""): 100, ("physics", "gpu", ""): 30, ("physics", "fpga", ""): 0}
        self.assertEqual(({"gpu": 10, "fpga": -1}, limits), (found.defaults, found.project_limits))
        self.assertEqual(
            [("atlas", None), ("physics", "atlas"), ("higgs", "physics"), ("operations", "atlas"), ("alone", None)],
            list(found.parents.items()),
        )

    def test_optional_keys(self) -> None:
        for text in ("{}", "defaults:", "projects:", "projects: []", "projects: [{id: a, limits: , children: }]"):
            self.assertEqual({}, read(text).defaults)

    def test_the_offender_is_named(self) -> None:
        one = "projects: [{id: a, children: [{id: b, %s}]}]"
        for text, *words in (
            ("", "the document must be a mapping of total, defaults and projects, not nothing"),
            ("- a", "not a list"),
            ("limits: {gpu: 1}", "the document has an unknown key 'limits'; known are total, defaults, projects"),
            ("defaults: [gpu]", "defaults must be a mapping of resources to limits, not a list"),
            (one % "limit: {gpu: 1}", "projects[0].children[0] has an unknown key 'limit'; known are id, limits, pods"),
            (one % "limits: [gpu]", "projects[0].children[0].limits must be a mapping", "not a list"),
            (one % "limits: {gpu: many}", "projects[0].children[0].limits.gpu must be an integer", "not 'many'"),
            (one % "limits: {gpu.A100: 1.5}", "projects[0].children[0].limits['gpu.A100'] must be", "not 1.5"),
            (one % "limits: {gpu: 1.0}", "must be an integer", "not 1.0"),
            (one % "limits: {gpu: yes}", "not True"),
            (one % "limits: {gpu: '1'}", "not '1'"),
            (one % "limits: {gpu: -2}", "from -1 (unlimited)", "not -2"),
            (one % f"limits: {{gpu: {MAX_LIMIT + 1}}}", f"to {MAX_LIMIT}, not {MAX_LIMIT + 1}"),
            (one % "limits: {5: 1}", "limits has the key 5, which must be a name, not 5; write it in quotes"),
            (one % "limits: {'gpu ': 1}", "has the key 'gpu ', which must be a name, not 'gpu ': it must not begin"),
            (one % "children: {id: c}", "children must be a list of projects, not a mapping"),
            (one % "children: [c]", "projects[0].children[0].children[0] must be a mapping of id, limits", "not 'c'"),
            ("projects: [{id: a, children: [{id: a}]}]", "children[0] has the same id 'a' as projects[0]"),
            ("projects: [{limits: {gpu: 1}}]", "projects[0] has no id"),
            ("projects: [{id: }]", "projects[0].id must be a name, not nothing"),
            ("projects: [{id: [a]}]", "projects[0].id must be a name, not a list"),
            ("projects: [{id: 123}]", "projects[0].id must be a name, not 123; write it in quotes"),
            ("projects: [{id: ' a'}]", "projects[0].id must be a name, not ' a': it must not begin or end with a bla"),
            ("defaults: {gpu: 1, gpu: 2}", "line 1", "'gpu' is given twice"),
            ("defaults: {gpu: 1", "line 2", "is not valid YAML"),
            ("a: !!python/object:os.system {}", "is not valid YAML"),
            ("defaults: {gpu: " + "9" * 5000 + "}", "is not valid YAML"),
            ("defaults: {gpu: 2001-12-31}", "defaults.gpu must be an integer", "not '2001-12-31'"),
            ("a: \x00", "is not valid YAML"),
            ("projects: [{id: p, overrides: {gpu: 1}}]", "projects[0].overrides must be a list of overrides"),
            *(
                (f"projects: [{{id: p, overrides: [{entry}]}}]", "projects[0].overrides[0]")
                for entry in (
                    "{resource: gpu, limit: 40}",
                    "{resource: gpu, limit: x, until: 2999-01-01T00:00Z}",
                    "{resource: gpu, limit: 1, until: soon}",
                    "{resource: gpu, limit: 1, until: 2999-02-30}",
                    "{resource: gpu, limit: 1, until: !!timestamp 2999-02-30}",
                    "{resource: gpu, limit: 1, until: 2999-01-01T00:00Z, from: 2999-01-02T00:00Z}",
                    "{resource: gpu, limit: 1, until: 2999-01-01T00:00Z, when: now}",
                    "{limit: 1, until: 2999-01-01T00:00Z}",
                    "{resource: gpu, limit: 1, until: 2999-01-01T00:00Z, reason: ''}",
                    "{resource: gpu, limit: null, until: 2999-01-01T00:00Z}",
                    "gpu",
                )
            ),
        ):
            self.refused(text, *words)

    def test_a_date_is_its_midnight_in_utc(self) -> None:
        span = "{resource: gpu, limit: 1, from: %s, until: %s, reason: 'x" + " " * 999 + "'}"
        text = "projects: [{id: p, overrides: [" + span + "]}]"
        for quote in ("", "'"):
            (one,) = read(text % (f"{quote}2027-12-01{quote}", "2027-12-02 08:00:00+02:00")).new_overrides
            expected = datetime.datetime(2027, 12, 1), datetime.datetime(2027, 12, 2, 6), "x"
            self.assertEqual(
                expected, (one.starts_at, one.until, one.reason), "without the blanks, with which it is too long"
            )
        self.refused(text % ("2027-12-01", "2027-12-01"), "overrides[0].until must be later than from")

    def test_a_cycle_by_alias_is_a_duplicate_project(self) -> None:
        self.refused("projects: [&a {id: a, children: [*a]}]", "has the same id 'a' as projects[0]")
        self.refused("projects: &a [*a]", "projects[0] must be a mapping")
        found = read("projects: [{id: a, limits: &std {gpu: 1}}, {id: b, limits: *std}]")
        self.assertEqual({("a", "gpu", ""): 1, ("b", "gpu", ""): 1}, found.project_limits, "no repetition")

    def test_a_few_lines_that_expand_without_end(self) -> None:
        text = "a: &a [x,x,x,x,x,x,x,x]\n" + "".join(
            f"{new}: &{new} [{','.join(['*' + old] * 8)}]\n" for old, new in zip("abcdefghi", "bcdefghij", strict=True)
        )
        self.refused(text, "unknown key 'a'")
        self.refused(text.replace("a: &a", "projects: &a", 1).split("\n")[0], "not 'x'")
        bomb = text.replace("a: &a", "defaults: &z\n  gpu: &a", 1)  # a value of 8 ** 10 parts
        self.refused(bomb.replace("b: &b", "projects: &b", 1).split("c: &c")[0], "defaults.gpu must be", "not a list")

    def test_any_depth(self) -> None:
        """The C parser recurses for each level: without a check of the depth, the process would crash."""
        for text in ("[" * 100_000, "- " * 50_000 + "x", "{a: " * 50_000, "projects: " + "[{id: a, children: " * 9999):
            self.refused(text, "nest")  # (PyYAML 6.0.4 has a check of its own)
        levels = "".join(f"[{{id: p{level}, children: " for level in range(65))
        self.refused(f"projects: {levels}[]{'}]' * 65}", "'p64'", "64 levels")


names_of_projects = (
    st.text(st.characters(categories=("L", "N", "P", "S", "M", "Zs")), max_size=12).map(str.strip).filter(bool)
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=4) | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["id", "limits", "children", "defaults", "projects", "gpu", "x"]), inner, max_size=4
        )
    ),
    max_leaves=25,
)


class TestFuzz(base.BaseTestCase):
    def assert_read_or_refused(self, call: Any, value: Any) -> None:
        try:
            call(value)
        except exceptions.InvalidDocument as error:
            self.assertNotIn("\n", str(error))

    @settings
    @hypothesis.given(anything)
    def test_any_value_is_a_document_or_refused(self, value: Any) -> None:
        self.assert_read_or_refused(document.read, value)
        self.assert_read_or_refused(document.read, {"projects": [{"id": "a", "children": value}]})
        self.assert_read_or_refused(document.read, {"defaults": value})
        self.assert_read_or_refused(lambda one: document.read(document.parse(yaml.safe_dump(one))), value)

    @settings
    @hypothesis.given(st.text(alphabet=st.sampled_from("ab:,-[]{}&*!|>'\"#%@` \n\t?~0159.e")) | st.text() | st.binary())
    def test_any_text_is_a_document_or_refused(self, text: str | bytes) -> None:
        self.assert_read_or_refused(lambda one: document.read(document.parse(one)), text)

    @settings
    @hypothesis.given(st.lists(st.tuples(names_of_projects, st.integers(0, 9), st.integers(-1, 2**62)), max_size=12))
    def test_written_documents_read_the_same(self, rows: list[tuple[str, int, int]]) -> None:
        """With any names: yes, null, 1e5, -, a quote or an emoji."""
        known: list[str | None] = [None]
        parents: dict[str, str | None] = {}
        limits = {}
        for project_id, above, limit in rows:
            if project_id not in parents:
                parents[project_id] = known[above % len(known)]
                known.append(project_id)
            limits[UsageKey(project_id, "gpu")] = limit
        before = LimitTree({"gpu": 1}, limits, parents, InitialLimits())
        text = document.render(document.write(before))
        after, changes = document.apply(before, document.read(document.parse(text)))
        self.assertEqual((before.parents, before.project_limits, []), (after.parents, after.project_limits, changes))
        empty, _ = document.apply(tree(), document.read(document.parse(text.encode())))
        self.assertEqual((parents, limits), (empty.parents, empty.project_limits))


class TestApply(base.BaseTestCase):
    def test_unmentioned_projects_stay(self) -> None:
        before = LimitTree(
            {"gpu": 1},
            {UsageKey("b", "gpu"): 2, UsageKey("b", "fpga"): 3},
            {"a": None, "b": "a", "c": "b"},
            InitialLimits(),
        )
        after, changes = document.apply(before, read("projects: [{id: b, limits: {gpu: 5, fpga: }}, {id: d}]"))
        self.assertEqual(
            ({"a": None, "b": None, "c": "b", "d": None}, {"gpu": 1}, {("b", "gpu", ""): 5}),
            (after.parents, after.defaults, after.project_limits),
        )
        self.assertEqual(
            [
                RecordedChange("move project", "b", None, "a", None),
                RecordedChange("set limit", "b", "gpu", 2, 5),
                RecordedChange("unset limit", "b", "fpga", 3, None),
                RecordedChange("add project", "d", None, None, None),
            ],
            changes,
        )
        self.assertEqual("a", before.parents["b"])
        self.assertEqual([], document.apply(tree(), read("defaults: {gpu: }"))[1], "null, and not set before")
