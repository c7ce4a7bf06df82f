# SPDX-License-Identifier: Apache-2.0
"""Processes behind a barrier: they are forked from a parent with filled caches, so that a hundred of them are cheap."""

from __future__ import annotations

import functools
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests import fixtures

FORK = multiprocessing.get_context("fork")
PROCESSES = 4 if fixtures.MORE == 1 else 8
"""The processes of a race. To fork one, and to connect it, takes longer than its calls."""
TIMEOUT_SECONDS = 120
_PAUSE_SECONDS = 0.03
"""Between two calls of an observer. (Without it, one that writes to SQLite keeps the lock nearly all the time.)"""
PATIENT = {"retry_seconds": 60.0, "statement_timeout_seconds": 60}
"""Settings of an engine whose calls must succeed on a busy machine, where many processes share a processor."""


def once(count: int) -> Callable[[], None]:
    """Return a function that waits in each of ``count`` processes until all have called it; later calls do nothing.

    Called between the read and the write of a wrong implementation, it makes every process read before any writes.
    """
    barrier = FORK.Barrier(count)
    has_waited = False

    def wait() -> None:
        nonlocal has_waited
        if not has_waited:
            has_waited = True
            barrier.wait(TIMEOUT_SECONDS)

    return wait


def race(*jobs: Callable[[], Any]) -> list[Any]:
    """Run every job in a process of its own, all starting at the same time. Returns their results, in order.

    A job that raises an error fails the race, with its traceback.
    """
    barrier = FORK.Barrier(len(jobs))
    pipes = [FORK.Pipe(duplex=False) for _ in jobs]
    processes = [
        FORK.Process(target=_child, args=(job, barrier, writer), daemon=True)
        for job, (_, writer) in zip(jobs, pipes, strict=True)
    ]
    for process in processes:
        process.start()
    try:
        answers = [_answer(reader) for reader, _ in pipes]
    finally:
        for process in processes:
            process.join(5)
            process.kill()
            process.join()
    failed = [value for is_error, value in answers if is_error]
    if failed:
        # Those that only waited for a process that has failed come last.
        failed.sort(key=lambda text: threading.BrokenBarrierError.__name__ in text)
        raise AssertionError(f"a racer failed:\n{failed[0]}")
    return [value for _, value in answers]


def race_in_turns(
    turns: Iterable[Sequence[Callable[[], Any]]], prepare: Callable[[int], object] | None = None
) -> list[list[Any]]:
    """Run several races, one after the other, in the same processes; returns the results of each race, in order.

    The races must not need each other's results. The processes start together in each race, and from the second race
    on with an open connection, so that their calls are closer together than if they had to connect first.
    ``prepare(number)`` is called in one of the processes immediately before each race, when the previous one has ended.
    """
    own_jobs = list(zip(*turns, strict=True))
    barrier = FORK.Barrier(len(own_jobs))

    def run(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        answers = []
        for number, job in enumerate(jobs):
            if prepare is not None and barrier.wait(TIMEOUT_SECONDS) == 0:
                prepare(number)
            barrier.wait(TIMEOUT_SECONDS)
            try:
                answers.append(job())
            except BaseException:
                barrier.abort()
                raise
        return answers

    return [list(answers) for answers in zip(*race(*(functools.partial(run, jobs) for jobs in own_jobs)), strict=True)]


def race_beside(
    writers: Sequence[Callable[[], Any]], *observers: Callable[[], Any]
) -> tuple[list[Any], list[list[Any]]]:
    """Race the writers, and in a process for each observer call it again and again until all writers have ended.

    Returns the results of the writers, and those of the calls of each observer, which are at least one. So the amount
    of work does not depend on the speed of the machine.
    """
    running = FORK.Value("i", len(writers))

    def write(job: Callable[[], Any]) -> Any:
        try:
            return job()
        finally:
            with running.get_lock():
                running.value -= 1

    def observe(job: Callable[[], Any]) -> list[Any]:
        answers = [job()]
        while running.value > 0:
            time.sleep(_PAUSE_SECONDS)
            answers.append(job())
        return answers

    jobs = [functools.partial(write, job) for job in writers] + [functools.partial(observe, job) for job in observers]
    answers = race(*jobs)
    return answers[: len(writers)], answers[len(writers) :]


def _answer(reader: Any) -> tuple[bool, Any]:
    if not reader.poll(TIMEOUT_SECONDS):
        return True, f"no answer after {TIMEOUT_SECONDS} seconds"
    answer: tuple[bool, Any] = reader.recv()
    return answer


def _child(job: Callable[[], Any], barrier: Any, writer: Any) -> None:
    try:
        barrier.wait(TIMEOUT_SECONDS)
        writer.send((False, job()))
    except BaseException:
        writer.send((True, traceback.format_exc()))
    finally:
        writer.close()
        os._exit(0)  # no atexit functions, no clean-up of the test runner: those belong to the parent
