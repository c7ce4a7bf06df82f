# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the names of projects, which Keystone knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cyborg_quota.exceptions.base import QuotaError, listed
from cyborg_quota.safe_repr import safe_repr


class UnknownProject(QuotaError):
    """Keystone has no project (or ``what``: domain) with this id or name."""

    def __init__(self, project: str, domain: str | None, *, what: str = "project", hint: str = "") -> None:
        self.project, self.domain, self.what = project, domain, what
        place = "" if domain is None else f" in the domain {safe_repr(domain)}"
        super().__init__(f"Keystone has no {what} with the name or id {safe_repr(project)}{place}. {hint}".rstrip())


class AmbiguousProject(QuotaError):
    """Several projects of Keystone have this name. ``candidates``: (project_id, domain_id) of each.

    The message has the first MAX_SHOWN.
    """

    MAX_SHOWN: Final = 10

    def __init__(self, project: str, candidates: Sequence[tuple[str, str | None]]) -> None:
        self.project, self.candidates = project, tuple(candidates)
        named = [f"{project_id} (domain {domain_id})" for project_id, domain_id in self.candidates]
        super().__init__(
            f"{len(named)} projects have the name {safe_repr(project)}: {listed(named, self.MAX_SHOWN)}. Give the id "
            "of one of them, or its domain (--project-domain)."
        )


class ProjectLookupFailed(QuotaError):
    """Keystone, which knows the names of the projects, did not answer."""

    def __init__(self, reason: str, *, hint: str = "") -> None:
        self.reason = reason
        super().__init__(f"Projects cannot be looked up: {reason}. {hint}".rstrip())
