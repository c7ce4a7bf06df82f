# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document: it is current and valid, and the served application agrees with it (schemathesis)."""

from __future__ import annotations

import calendar
import json
import re
from typing import Any

import hypothesis
import jsonschema
import schemathesis
import yaml
from oslotest import base
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup

from cyborg_quota import exceptions, policy, validation
from cyborg_quota.api import openapi, schemas
from cyborg_quota.api.handlers import history
from cyborg_quota.api.operations import OPERATIONS
from cyborg_quota.surface.operations import NAME, REASON, TIME
from tests.api import server

EXAMPLES = {GenerationMode.POSITIVE: 3, GenerationMode.NEGATIVE: 2}
"""For each call. An invalid request is several times as expensive to generate."""
SETTINGS = hypothesis.settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)


class TestDocument(base.BaseTestCase):
    def test_the_committed_document_is_current(self) -> None:
        command = "run python -m cyborg_quota.api.openapi > cyborg_quota/api/openapi.yaml"
        self.assertEqual(openapi.text(), openapi.FILE.read_text(), command)

    def test_its_schemas_are_valid_and_every_reference_leads_somewhere(self) -> None:
        for schema in (*schemas.COMPONENTS.values(), *(one for call in OPERATIONS for one in call.query.values())):
            jsonschema.Draft202012Validator.check_schema(schema)
        document = yaml.safe_load(openapi.FILE.read_text())
        found = set(re.findall(r'"\$ref": "#/components/(\w+)/(\w+)"', json.dumps(document)))
        self.assertGreater(len(found), 20)
        self.assertEqual([], [pair for pair in found if pair[1] not in document["components"][pair[0]]])

    def test_a_text_that_a_schema_permits_is_accepted(self) -> None:
        """And no other, except names of many characters of four bytes, and a line feed at the end."""
        tricky = "aZ0/=,. \t\n\x00\x1f\x7f\x85\xa0\u00e4\u1680\u2028\u2029\u200b\u3000\ud800\uffff\U0001f600"
        texts = hypothesis.strategies.text(hypothesis.strategies.sampled_from(tricky), max_size=8)
        repeated = hypothesis.strategies.builds("".join, hypothesis.strategies.lists(texts, max_size=60))
        kinds = {
            "name": (NAME, lambda text: validation.check_name("name", text)),
            "reason": (REASON, lambda text: validation.author_of(server.base.ADMIN, text)),
        }

        def check(text: str) -> None:
            for kind, (schema, accept) in kinds.items():
                is_accepted = True
                try:
                    accept(text)
                except exceptions.InvalidRequest:
                    is_accepted = False
                is_permitted = jsonschema.Draft202012Validator(schema).is_valid(text)
                if not text.endswith("\n") and (is_permitted or (len(text) <= 190 and text == text.strip())):
                    self.assertEqual(is_permitted, is_accepted, (kind, text))

        for one in ("a", "\U0001f600" * 191, "\U0001f600" * 192, "\u00e4" * 255, "a" * 256, "a b", " a", "a\u3000"):
            check(one)
        settings = hypothesis.settings(SETTINGS, max_examples=100)
        settings(hypothesis.given(repeated)(check))()

    def test_a_time_that_a_schema_permits_is_accepted(self) -> None:
        """Also on Python 3.10, which knows fractions of 3 and of 6 digits only."""
        permits = jsonschema.Draft202012Validator(TIME).is_valid
        for text in (
            "2026-01-31T08:00:00Z",
            "2026-01-31T08:00",
            "2999-12-31T23:59:59.123+05:30",
            "1970-01-01T00:00:00",
        ):
            self.assertTrue(permits(text), text)
        times = hypothesis.strategies.from_regex(TIME["pattern"])

        def check(text: str) -> None:
            day = text[:10]
            if text.endswith("\n") or int(day[8:]) > calendar.monthrange(int(day[:4]), int(day[5:7]))[1]:
                return  # (the format date-time has no 31 February)
            history.parse_time("until", {"until": text})

        hypothesis.settings(SETTINGS, max_examples=80)(hypothesis.given(times)(check))()
        for text in ("2026-01-31", "2026-01-31T24:00Z", "2026-01-31T08:00:60Z", "2026-01-31T08:00:00.1Z", "now", ""):
            self.assertFalse(permits(text), text)

    def test_each_list_has_pages(self) -> None:
        """Those of the resources of one project are no lists."""
        components = yaml.safe_load(openapi.FILE.read_text())["components"]["schemas"]
        lists = set()
        for call in OPERATIONS:
            members = components[str(call.answer)]["properties"] if call.answer and call.method == "GET" else {}
            links = {name for name in members if name.endswith("_links")}
            arrays = {name for name, schema in members.items() if schema.get("type") == "array"} - {"warnings"}
            if arrays | links:
                lists.add(call.name)
                self.assertTrue(links, call.name)
                self.assertLessEqual({"limit", "marker"}, set(call.query), call.name)
        self.assertLessEqual({"list_over", "get_total_quota", "override_list", "pod_list"}, lists)

    def test_each_call_has_a_rule_and_is_named_by_its_rule(self) -> None:
        """The operations of the policy sample are those of the API."""
        documented = {
            (operation["method"], operation["path"].partition("?")[0], rule.name)
            for rule in policy.list_rules()
            for operation in getattr(rule, "operations", ())
            if operation["method"] != "CLI"
        }
        for call in OPERATIONS:
            rules = {name for method, path, name in documented if (method, path) == (call.method, call.path)}
            checked = {"list_quota_reservations": policy.RESERVATIONS, "usage_report": policy.GET}  # (by the call)
            self.assertIn(call.rule or checked[call.name], rules, call.name)
        self.assertLessEqual({pair[:2] for pair in documented}, {(call.method, call.path) for call in OPERATIONS})


class TestConformance(server.ApiTestCase):
    """Generated requests, valid and invalid, against the application."""

    def setUp(self) -> None:
        super().setUp()
        self.schema = schemathesis.openapi.from_dict(yaml.safe_load(openapi.FILE.read_text()))
        self.schema.app = self.application

    def try_all(self, mode: GenerationMode) -> set[tuple[str, int]]:
        """Make some requests of each call; returns which call answered what."""
        answers: set[tuple[str, int]] = set()
        problems: list[str] = []
        # A valid name may be that of a resource that does not exist (400), and NamedTokens accepts every token.
        names = ("positive_data_acceptance", "ignored_auth")
        excluded = [schemathesis.checks.CHECKS.get_one(name) for name in names]

        def check(case: Any) -> None:
            response = case.call(headers={"X-Auth-Token": server.ADMIN})
            answers.add((case.operation.definition.raw["operationId"], response.status_code))
            try:
                case.validate_response(response, excluded_checks=excluded)
            except FailureGroup as found:
                problems.append(str(found))

        for result in self.schema.get_all_operations():
            strategy = result.ok().as_strategy(generation_mode=mode)
            settings = hypothesis.settings(SETTINGS, max_examples=EXAMPLES[mode])
            hypothesis.seed(20261122)(settings(hypothesis.given(strategy)(check)))()
        self.assertEqual([], problems[:3])
        return answers

    def test_valid_requests(self) -> None:
        answers = self.try_all(GenerationMode.POSITIVE)
        self.assertEqual({call.name for call in OPERATIONS}, {name for name, _ in answers})
        self.assertEqual([], [answer for answer in answers if answer[1] >= 500])
        self.assertGreater(len([answer for answer in answers if answer[1] < 300]), len(OPERATIONS) // 2)
        self.assert_invariants()

    def test_invalid_requests(self) -> None:
        answers = self.try_all(GenerationMode.NEGATIVE)
        self.assertLessEqual(
            {status for _, status in answers}, {200, 201, 204, 400, 401, 403, 404, 405, 406, 409, 413, 415}
        )
        self.assert_invariants()
