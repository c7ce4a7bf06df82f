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


class BackgroundCall:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._answer: futures.Future[Any] = futures.ThreadPoolExecutor(1).submit(call)

    @property
    def waits(self) -> bool:
        """Return whether it still runs after A_WHILE_SECONDS."""
        self.join(A_WHILE_SECONDS)
        return not self._answer.done()

    def join(self, seconds: float) -> None:
        """Wait for its end, at most this long."""
        futures.wait([self._answer], seconds)

    def end(self) -> Any:
        """Return its answer, or raise its error."""
        return self._answer.result(60)


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
        others: list[BackgroundCall] = []

        def act_in_background(name: str = name, others: list[BackgroundCall] = others) -> None:
            others.append(BackgroundCall(lambda: act(name)))
            others[0].join(SECONDS_FOR_THE_OTHER)

        with hooks.BeforeStatement(sql, number, act_in_background) as interruption:
            answer = interrupted(name)
        if not interruption.happened:
            return
        others[0].end()
        yield name, answer
