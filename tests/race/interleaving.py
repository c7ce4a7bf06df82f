# SPDX-License-Identifier: Apache-2.0
"""Interrupts one call before each of its statements, and runs another call there until it ends or waits for a lock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, TypeVar

import sqlalchemy as sa

from tests import hooks

T = TypeVar("T")

A_WHILE_SECONDS = 0.3
SECONDS_FOR_THE_OTHER = 0.05
"""A call takes a few milliseconds. After this time it waits for a lock, and the interrupted call continues."""
MAX_STATEMENTS = 80


def in_background(call: Callable[[], T]) -> futures.Future[T]:
    """Make the call in a thread of its own."""
    return futures.ThreadPoolExecutor(1).submit(call)


def waits(call: futures.Future[Any]) -> bool:
    """Whether it still runs after A_WHILE_SECONDS."""
    return bool(futures.wait([call], A_WHILE_SECONDS).not_done)


def interleave(
    sql: sa.Engine, prepare: Callable[[str], object], interrupted: Callable[[str], T], act: Callable[[str], object]
) -> Iterator[tuple[str, T]]:
    """Interrupt a call before statement 0, 1, ... that it sends on ``sql``, until it sends no more.

    All three functions are called with a new name for each number, ``prepare`` first. When both calls have ended, it
    yields the name and the result of the interrupted call. An error of either call is raised.
    """
    for number in itertools.count():
        assert number < MAX_STATEMENTS, "the interrupted call does not end"
        name = f"n{number}"
        prepare(name)
        others: list[futures.Future[object]] = []

        def act_in_background(name: str = name, others: list[futures.Future[object]] = others) -> None:
            others.append(in_background(lambda: act(name)))
            futures.wait(others, SECONDS_FOR_THE_OTHER)

        with hooks.BeforeStatement(sql, number, act_in_background) as interruption:
            answer = interrupted(name)
        if not interruption.happened:
            return
        others[0].result(60)
        yield name, answer
