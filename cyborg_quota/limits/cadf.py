# SPDX-License-Identifier: Apache-2.0
"""Sends an event in the CADF format for each change of limits or of the project tree, as Keystone does for its own.

CADF (Cloud Auditing Data Federation, DMTF DSP0262) describes who (initiator) did what (action) to which object
(target). The event type is cyborg_quota.<limit, override or project>.<created, updated or deleted>; the values before
and after, and the reason, are in an attachment.
"""

from __future__ import annotations

import os
import time
import warnings
from typing import Any, Final

from oslo_config import cfg
from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.conf import plugins
from cyborg_quota.types import RecordedChange, RecordedChanges
from cyborg_quota.types.limits import reason_of

LOG = logging.getLogger(__name__)

MAX_EVENTS: Final = 100
"""A transaction with more changes than this sends one event, with their number."""

_SEND_ATTEMPTS: Final = 1
_SEND_SECONDS: Final = 5.0
"""The caller has committed the change and waits: without a message bus, it must not wait for long."""

_VERBS: Final = {
    "set limit": ("update", "limit", "updated"),
    "unset limit": ("delete", "limit", "deleted"),
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
        self._conf = conf
        self._notifier: Any = None
        self._pid: int | None = None
        self._is_usable = True

    def __call__(self, recorded: RecordedChanges) -> None:
        if not self._is_usable:
            return
        try:
            if self._pid != os.getpid():
                self._notifier, self._pid = plugins.make_notifier(self._conf, retry=_SEND_ATTEMPTS), os.getpid()
            deadline = time.monotonic() + _SEND_SECONDS
            for event_type, payload in events(recorded):
                if time.monotonic() > deadline:
                    LOG.warning(
                        "The message bus is slow or unavailable: not all events of generation %d of the history "
                        "were sent.",
                        recorded.generation,
                    )
                    return
                self._notifier.info({}, event_type, payload)
        except exceptions.ConfigurationError as error:
            self._is_usable = False
            LOG.warning("Events of limit changes are not sent until the next start: %s", error)


def events(recorded: RecordedChanges) -> list[Event]:
    """The events of one transaction. Raises ConfigurationError if pycadf is missing."""
    changes = [change for change in recorded.changes if change.action in _VERBS]
    if len(changes) > MAX_EVENTS:
        attachment = {"operation": recorded.operation, "changes": len(changes)}
        return [("cyborg_quota.limits.updated", _payload(recorded, "update", "limits", attachment))]
    return [_event(recorded, change) for change in changes]


def _event(recorded: RecordedChanges, change: RecordedChange) -> Event:
    action, kind, verb = _VERBS[change.action]
    if change.action == "set limit" and change.before is None:
        action, verb = "create", "created"
    attachment: dict[str, Any] = {
        "operation": recorded.operation,
        **change.names,
        "before": change.before,
        "after": change.after,
    }
    if (override := change.override) is not None:
        attachment |= {"from": f"{override.starts_at.isoformat()}Z", "until": f"{override.until.isoformat()}Z"}
    return f"{plugins.PUBLISHER}.{kind}.{verb}", _payload(recorded, action, kind, attachment, change)


def _payload(
    recorded: RecordedChanges,
    action: str,
    kind: str,
    attachment: dict[str, Any],
    change: RecordedChange | None = None,
) -> dict[str, Any]:
    try:
        from pycadf import attachment as attachments
        from pycadf import cadftaxonomy, eventfactory, resource
    except ImportError:
        raise exceptions.ConfigurationError(
            "[notices] notifications needs pycadf for the events of limit changes: install cyborg_quota[notifications]"
        ) from None
    author = recorded.author
    with warnings.catch_warnings():
        # An id need not be a UUID here: os:alice, or a project that another service named.
        warnings.simplefilter("ignore")
        event = eventfactory.EventFactory().new_event(
            action=action,
            outcome=cadftaxonomy.OUTCOME_SUCCESS,
            initiator=resource.Resource(
                id=author.user_id or "unknown", typeURI=cadftaxonomy.ACCOUNT_USER, name=author.user_id
            ),
            target=resource.Resource(
                id="default" if change is None or change.project_id is None else change.project_id,
                typeURI="data/security/project" if kind == "project" else "data/config/limit",
                name=None if change is None else change.resource,
            ),
            observer=resource.Resource(
                id=plugins.PUBLISHER, typeURI="service/accelerator/quota", name=plugins.PUBLISHER
            ),
        )
        content = {
            **attachment,
            "generation": recorded.generation,
            "reason": author.reason if change is None else reason_of(author, change),
            "initiator_project_id": author.project_id,
            "request_id": author.request_id,
        }
        event.add_attachment(attachments.Attachment(typeURI="mime:application/json", content=content, name="change"))
    return event.as_dict()  # type: ignore[no-any-return]
