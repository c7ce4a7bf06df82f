# SPDX-License-Identifier: Apache-2.0
"""Reports a crossed threshold: a log line and, if configured, a notification."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from oslo_config import cfg
from oslo_log import log as logging

from cyborg_quota.conf import plugins
from cyborg_quota.types import Notice

LOG = logging.getLogger(__name__)

Send = Callable[[Notice], None]

SUMMARIZE_ABOVE: Final = 10
"""If more notices of one direction than this are due at once, the log gets one line."""


def notify_all(notices: Sequence[Notice], send: Send | None) -> None:
    """Log the notices, and pass each to ``send``. More than SUMMARIZE_ABOVE in one direction make one log line.

    (The first check of a cloud, or a lowered default, can make thousands of projects cross a threshold at once.)
    """
    by_level: dict[int, list[Notice]] = {logging.INFO: [], logging.WARNING: []}
    for notice in notices:
        by_level[_log_level(notice)].append(notice)
    for log_level, group in by_level.items():
        if len(group) > SUMMARIZE_ABOVE:
            levels = Counter((notice.now, notice.where) for notice in group)
            # The highest level first; within a level, "at the limit" is higher than a percentage.
            ordered = sorted(levels.items(), key=lambda item: (-item[0][0], "%" in item[0][1]))
            LOG.log(
                log_level,
                "%d thresholds crossed: %s. (%s them; each notice is logged at DEBUG.)",
                len(group),
                ", ".join(f"{count} {where}" for (_, where), count in ordered),
                group[0].SHOWN_BY,
            )
    for notice in notices:
        is_summarized = len(by_level[_log_level(notice)]) > SUMMARIZE_ABOVE
        notify(notice, send, logging.DEBUG if is_summarized else None)


def _log_level(notice: Notice) -> int:
    return int(logging.WARNING if notice.now > notice.before else logging.INFO)


def notify(notice: Notice, send: Send | None, log_level: int | None = None) -> None:
    """Log the notice, with its figures as name=value, and pass it to ``send``. Rising levels are warnings."""
    values = {name: value for name, value in dataclasses.asdict(notice).items() if name not in ("before", "now")}
    LOG.log(
        _log_level(notice) if log_level is None else log_level,
        "threshold crossed: %s [%s level_before=%d level=%d]",
        notice,
        " ".join(f"{name}={'(all)' if value is None else value}" for name, value in values.items()),
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
    notifier = plugins.make_notifier(conf)

    def send(notice: Notice) -> None:
        report = notifier.warn if notice.now > notice.before else notifier.info
        report({}, notice.EVENT, dataclasses.asdict(notice))

    return send
