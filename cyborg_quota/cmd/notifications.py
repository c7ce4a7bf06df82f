# SPDX-License-Identifier: Apache-2.0
"""Telling people that a project has crossed a threshold: a line in the log, and a notification where configured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

from oslo_config import cfg
from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.types import Notice

LOG = logging.getLogger(__name__)

EVENT: Final = "cyborg_quota.threshold"
PUBLISHER: Final = "cyborg_quota"

Send = Callable[[Notice], None]


def tell(notice: Notice, send: Send | None) -> None:
    """One line of the log, with the figures as name=value; a warning on the way up. And ``send`` it."""
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
        LOG.exception("The notification of %s could not be sent.", notice)


def sender(conf: cfg.ConfigOpts) -> Send | None:
    """What sends notifications, None where they are off. Raises ConfigurationError where oslo.messaging is missing."""
    if not conf.notices.notifications:
        return None
    try:
        import oslo_messaging
    except ImportError:
        raise exceptions.ConfigurationError(
            "[notices] notifications needs oslo.messaging: pip install 'cyborg_quota[notifications]'"
        ) from None
    try:
        notifier = oslo_messaging.Notifier(oslo_messaging.get_notification_transport(conf), publisher_id=PUBLISHER)
    except Exception as error:  # a dozen kinds, by the driver; most quote the URL, and that may hold a password
        raise exceptions.ConfigurationError(
            f"[notices] notifications: the transport cannot be used ({type(error).__name__}). See transport_url in "
            "[oslo_messaging_notifications] and [DEFAULT]."
        ) from None

    def send(notice: Notice) -> None:
        payload: dict[str, Any] = dataclasses.asdict(notice)
        (notifier.warn if notice.now > notice.before else notifier.info)({}, EVENT, payload)

    return send
