# SPDX-License-Identifier: Apache-2.0
"""The notifier of oslo.messaging, made from the configuration."""

from __future__ import annotations

from typing import Any, Final

from oslo_config import cfg

from cyborg_quota import exceptions

PUBLISHER: Final = "cyborg_quota"


def make_notifier(conf: cfg.ConfigOpts, *, retry: int | None = None) -> Any:
    """Return an oslo_messaging.Notifier. It connects at first use.

    ``retry``: the number of attempts to connect again; None: [oslo_messaging_notifications] retry, by default forever.
    Raises ConfigurationError if oslo.messaging is missing or the transport cannot be used.
    """
    try:
        import oslo_messaging
    except ImportError:
        raise exceptions.ConfigurationError(
            "[notices] notifications needs oslo.messaging: install cyborg_quota[notifications]"
        ) from None
    try:
        transport = oslo_messaging.get_notification_transport(conf)
        return oslo_messaging.Notifier(transport, publisher_id=PUBLISHER, retry=retry)
    except Exception as error:  # its text may contain the URL with its password
        raise exceptions.ConfigurationError(
            f"[notices] notifications: the transport cannot be used ({type(error).__name__}). See transport_url in "
            "[oslo_messaging_notifications] and [DEFAULT]."
        ) from None
