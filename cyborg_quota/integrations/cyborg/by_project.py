# SPDX-License-Identifier: Apache-2.0
"""Work through postponed calls of many projects, so that locked projects do not hold up the others."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

_THREADS: Final = 8
"""After the first lock, this many projects are worked at a time: each locked one takes as long as a call is retried."""


class EndOfWork(Exception):
    """Raised by the work: the calls for all projects would fail, so none of the rest is made."""


def work_through(items: Iterable[T], project_of: Callable[[T], str], work: Callable[[T], bool]) -> None:
    """Call ``work`` for each item, in order. False: a lock holds up this project, whose other items are skipped.

    From the first False on, the other projects are worked in parallel, each in order. EndOfWork ends all of it;
    another error too, and is raised.
    """
    rest = deque(items)
    is_free = True
    while rest and is_free:
        item = rest.popleft()
        try:
            is_free = work(item)
        except EndOfWork:
            return
        if not is_free:
            by_project: dict[str, list[T]] = {}
            for other in rest:
                by_project.setdefault(project_of(other), []).append(other)
            by_project.pop(project_of(item), None)
            _Workers(by_project.values(), work).run()


class _Workers:
    def __init__(self, groups: Iterable[list[T]], work: Callable[[T], bool]) -> None:
        self._groups = deque(groups)
        self._work: Callable[..., bool] = work
        self._errors: list[BaseException] = []

    def run(self) -> None:
        threads = []
        for _ in range(min(_THREADS, len(self._groups)) - 1):
            thread = threading.Thread(target=self._run, name="cyborg-quota-postponed", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the process is ending, or may start no more threads
                break
            threads.append(thread)
        self._run()
        for thread in threads:
            thread.join()
        if self._errors and not isinstance(self._errors[0], EndOfWork):
            raise self._errors[0]

    def _run(self) -> None:
        while not self._errors:
            try:
                group = self._groups.popleft()
            except IndexError:
                return
            try:
                for item in group:
                    if self._errors or not self._work(item):
                        break
            except BaseException as error:
                self._errors.append(error)
