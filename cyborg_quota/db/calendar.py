# SPDX-License-Identifier: Apache-2.0
"""Months in UTC, by their numbers, and seconds (clock.second). Meters and budgets use them."""

from __future__ import annotations

import datetime

from cyborg_quota.types.limits import EPOCH


def month_of(at: int) -> int:
    """The number of months from January 2020 to the month of this second."""
    return month_number(time_of(at))


def time_of(at: int) -> datetime.datetime:
    """This second as naive UTC."""
    return EPOCH + datetime.timedelta(seconds=at)


def month_number(day: datetime.date) -> int:
    """The number of months from January 2020 to this day."""
    return (day.year - EPOCH.year) * 12 + day.month - 1


def date_of(month: int) -> datetime.datetime:
    """The first day of a month, by its number."""
    return EPOCH.replace(year=EPOCH.year + month // 12, month=month % 12 + 1)


def second_of(month: int) -> int:
    """The first second of a month, by its number."""
    return (date_of(month) - EPOCH) // datetime.timedelta(seconds=1)


def end_of_month(at: int) -> int:
    """The first second of the next month."""
    return second_of(month_of(at) + 1)
