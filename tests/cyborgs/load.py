# SPDX-License-Identifier: Apache-2.0
"""Random binds, unbinds and deletes through Cyborg's API, and a thread that kills its services."""

from __future__ import annotations

import collections
import contextlib
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.cyborgs.client import Answer, Client
from tests.cyborgs.service import Service, start_all

HELD = 10
"""The maximum number of ARQs per user."""
NO_ANSWER = 0

Outcomes = collections.Counter[tuple[str, int]]
"""{(call, HTTP status): count}; NO_ANSWER if there was no answer."""


class User:
    """A user of one project, in a thread of its own. It knows which ARQs it has made, but not their state.

    :param profiles: the device profiles, by their number of ARQs.
    :param rps: the resource provider of each host.
    """

    def __init__(self, client: Client, profiles: dict[int, str], rps: dict[str, str], seed: str) -> None:
        self._client = client
        self._profiles = profiles
        self._rps = rps
        self._rng = random.Random(seed)
        self._arqs: dict[str, str] = {}
        """ARQ -> instance, of the latest bind."""
        self.outcomes: Outcomes = collections.Counter()

    def work(self, stop: threading.Event) -> None:
        """Run until stopped; the call in progress is completed."""
        while not stop.is_set():
            actions = [self.bind, self.unbind, self.delete, self.delete_instance]
            weights = [5, 2, 2, 1] if len(self._arqs) < HELD else [0, 1, 3, 3]
            self._rng.choices(actions, weights)[0]()

    def bind(self) -> None:
        """Bind one to four ARQs, sometimes on an unknown device. Mostly, failed ones are deleted, as Nova does."""
        made = self.call("create", lambda: self._client.create(self._profiles[self._rng.choice([1, 1, 1, 2, 4])]))
        if made.status != 201:
            return
        arqs = [arq["uuid"] for arq in made.body["arqs"]]
        instance, host = str(uuid.uuid4()), self._rng.choice(sorted(self._rps))
        is_unknown = self._rng.random() < 0.1
        rp = str(uuid.uuid4()) if is_unknown else self._rps[host]
        self._arqs.update(dict.fromkeys(arqs, instance))
        what = "bind to nowhere" if is_unknown else "bind"
        bound = self.call(what, lambda: self._client.bind(arqs, instance, rp, host))
        if bound.status >= 500 and self._rng.random() < 0.5:
            bound = self.call("bind again", lambda: self._client.bind(arqs, instance, rp, host))
        if bound.status != 202 and self._rng.random() < 0.7:
            self._delete(arqs)

    def unbind(self) -> None:
        self.some(lambda arqs: self.call("unbind", lambda: self._client.unbind(arqs)))

    def delete(self) -> None:
        self.some(self._delete)

    def delete_instance(self) -> None:
        def of_the_first(arqs: list[str]) -> None:
            instance = self._arqs[arqs[0]]
            answer = self.call("delete instance", lambda: self._client.delete_instance(instance))
            if answer.status == 204:
                self._arqs = {arq: other for arq, other in self._arqs.items() if other != instance}

        self.some(of_the_first)

    def _delete(self, arqs: list[str]) -> None:
        if self.call("delete", lambda: self._client.delete(arqs)).status in (204, 404):
            for arq in arqs:
                self._arqs.pop(arq, None)

    def some(self, action: Callable[[list[str]], object]) -> None:
        """With one or two of the ARQs, if there are any."""
        if self._arqs:
            action(self._rng.sample(sorted(self._arqs), min(len(self._arqs), self._rng.choice([1, 2]))))

    def call(self, what: str, method: Callable[[], Answer]) -> Answer:
        try:
            answer = method()
        except OSError:
            answer = Answer(NO_ANSWER, None)
            time.sleep(0.2)
        self.outcomes[what, answer.status] += 1
        return answer


@contextlib.contextmanager
def at_work(users: Sequence[Any]) -> Iterator[collections.Counter[Any]]:
    """Let users work in threads of their own while the block runs; then the counter has the sum of their outcomes."""
    stop = threading.Event()
    threads = [threading.Thread(target=user.work, args=[stop], daemon=True) for user in users]
    for thread in threads:
        thread.start()
    outcomes: collections.Counter[Any] = collections.Counter()
    yield outcomes
    stop.set()
    for thread, user in zip(threads, users, strict=True):
        thread.join()
        outcomes.update(user.outcomes)
        user.outcomes.clear()


def kill(choices: Sequence[Sequence[Service]], rng: random.Random, seconds: float) -> int:
    """Kill (SIGKILL) one or several services at random times, and start them again, for ``seconds``.

    All services run again when this returns. Returns the number of kills.

    :param choices: one that is listed more often is killed more often.
    """
    over, kills = time.monotonic() + seconds, 0
    while time.monotonic() < over:
        time.sleep(rng.uniform(0.3, 2.0))
        victims = rng.choice(choices)
        for victim in victims:
            victim.kill()
        kills += 1
        time.sleep(rng.uniform(0, 0.5))
        start_all(*victims)
    return kills
