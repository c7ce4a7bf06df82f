# SPDX-License-Identifier: Apache-2.0
"""Reports that a project has crossed a threshold: a log line and, if configured, a notification."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

from oslo_config import cfg
from oslo_log import log as logging

from cyborg_quota import messaging
from cyborg_quota.types import Notice

LOG = logging.getLogger(__name__)

EVENT: Final = "cyborg_quota.threshold"

Send = Callable[[Notice], None]


def notify(notice: Notice, send: Send | None) -> None:
    """Log the notice, with its figures as name=value, and pass it to ``send``. Rising levels are warnings."""
    LOG.log(
        logging.WARNING if notice.now > notice.before else logging.INFO,
        "threshold crossed: %s [project_id=%s resource=%s limit=%d held=%d level_before=%d level=%d]",
        notice,
        notice.project_id,
        notice.resource,
        notice.limit,
        notice.held,
        notice.before,
        notice.now,
    )
    if send is None:
        return
    try:
        send(notice)
    except Exception:
        LOG.exception("Could not send the notification of %s.", notice)


def make_sender(conf: cfg.ConfigOpts) -> Send | None:
    """Return the function that sends notifications, or None if they are disabled.

    Raises ConfigurationError if oslo.messaging is missing or the transport cannot be used.
    """
    if not conf.notices.notifications:
        return None
    notifier = messaging.make_notifier(conf)

    def send(notice: Notice) -> None:
        payload: dict[str, Any] = dataclasses.asdict(notice)
        (notifier.warn if notice.now > notice.before else notifier.info)({}, EVENT, payload)

    return send
