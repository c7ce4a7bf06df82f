# SPDX-License-Identifier: Apache-2.0
"""Sends an event in the CADF format for each change of limits, budgets or the project tree, as Keystone does.

CADF (Cloud Auditing Data Federation, DMTF DSP0262) describes who (initiator) did what (action) to which object
(target). The event type is cyborg_quota.<limit, override, budget or project>.<created, updated or deleted>, or
cyborg_quota.minimum.updated; the values before and after, and the reason, are in an attachment.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from typing import Any, Final

from oslo_config import cfg
from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.conf import plugins
from cyborg_quota.types import RecordedChanges
from cyborg_quota.types.limits import reason_of

LOG = logging.getLogger(__name__)

_SEND_ATTEMPTS: Final = 1
_SEND_SECONDS: Final = 5.0
"""The caller has committed the change and waits: without a message bus, it must not wait for long."""

_VERBS: Final = {
    "set limit": ("update", "limit", "updated"),
    "unset limit": ("delete", "limit", "deleted"),
    "set minimum": ("update", "minimum", "updated"),
    "set budget": ("update", "budget", "updated"),
    "adjust budget": ("update", "budget", "updated"),
    "delete budget": ("delete", "budget", "deleted"),
    "set override": ("create", "override", "created"),
    "cancel override": ("delete", "override", "deleted"),
    "add project": ("create", "project", "created"),
    "move project": ("update", "project", "updated"),
    "remove project": ("delete", "project", "deleted"),
}
"""The CADF action, and the object and the verb of the event type, by the action of a change."""

Event = tuple[str, dict[str, Any]]
"""The event type and the payload of a notification."""


class Sender:
    """Sends the events of committed changes. The first call connects; a forked child opens its own connection."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        """Raises ConfigurationError if pycadf is missing."""
        try:
            import pycadf  # noqa: F401
        except ImportError:
            raise exceptions.ConfigurationError(
                "[notices] notifications needs pycadf for the events of limit changes: install "
                "cyborg_quota[notifications]"
            ) from None
        self._conf = conf
        self._notifier: Any = None
        self._pid: int | None = None

    def __call__(self, recorded: RecordedChanges) -> None:
        if self._pid != os.getpid():
            self._notifier, self._pid = plugins.make_notifier(self._conf, retry=_SEND_ATTEMPTS), os.getpid()
        deadline = time.monotonic() + _SEND_SECONDS
        for event_type, payload in events(recorded):
            if time.monotonic() > deadline:
                LOG.warning(
                    "The message bus is slow or unavailable: not all events of generation %d of the history were sent.",
                    recorded.generation,
                )
                return
            self._notifier.info({}, event_type, payload)


def events(recorded: RecordedChanges) -> Iterator[Event]:
    """The events of one transaction. Changes of capacity and of pods have none."""
    from pycadf import attachment as attachments
    from pycadf import cadftaxonomy, eventfactory, resource

    for change in recorded.changes:
        if change.action not in _VERBS:
            continue
        action, kind, verb = _VERBS[change.action]
        if change.action.startswith("set ") and change.before is None:
            action, verb = "create", "created"
        content: dict[str, Any] = {
            "operation": recorded.operation,
            **change.names,
            "before": change.before,
            "after": change.after,
            "generation": recorded.generation,
            "reason": reason_of(recorded.author, change),
            "initiator_project_id": recorded.author.project_id,
            "request_id": recorded.author.request_id,
        }
        if (override := change.override) is not None:
            content |= {"from": f"{override.starts_at.isoformat()}Z", "until": f"{override.until.isoformat()}Z"}
        user_id = recorded.author.user_id
        with warnings.catch_warnings():
            # An id need not be a UUID here: os:alice, or a project that another service named.
            warnings.simplefilter("ignore")
            event = eventfactory.EventFactory().new_event(
                action=action,
                outcome=cadftaxonomy.OUTCOME_SUCCESS,
                initiator=resource.Resource(id=user_id or "unknown", typeURI=cadftaxonomy.ACCOUNT_USER, name=user_id),
                target=resource.Resource(
                    id="default" if change.project_id is None else change.project_id,
                    typeURI="data/security/project" if kind == "project" else "data/config/limit",
                    name=change.resource,
                ),
                observer=resource.Resource(
                    id=plugins.PUBLISHER, typeURI="service/accelerator/quota", name=plugins.PUBLISHER
                ),
            )
            event.add_attachment(
                attachments.Attachment(typeURI="mime:application/json", content=content, name="change")
            )
        yield f"{plugins.PUBLISHER}.{kind}.{verb}", event.as_dict()
