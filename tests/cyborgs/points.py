# SPDX-License-Identifier: Apache-2.0
"""cyborg-quota-conductor that waits or is killed at named points of a bind. Run by Cyborg's Python.

    python points.py --config-file ...              cyborg-quota-conductor
    python points.py --own --config-file ...        Cyborg's own conductor, with the entry point cyborg.quota

The points of a bind: ``reserved`` (everything is reserved, nothing is bound), ``bound`` (bound in Cyborg, not yet
committed in the ledger) and ``committed`` (both are done, the caller has no answer yet). At each point the conductor
reads the directory CYBORG_QUOTA_TEST_POINTS. If it has a file with the name of the point and the content ``kill``, the
process and its parent are killed with SIGKILL; with the content ``hold``, the process waits while the file exists. It
creates ``POINT.reached`` when it reaches a point. If a file ``job`` exists, an FPGA is bound in a job of its own, like
one that must be programmed first.
"""

import functools
import os
import pathlib
import signal
import sys
import time

sys.path.pop(0)  # this directory

import cyborg.cmd  # noqa: F401  (first, as in every program of Cyborg: it selects the backend of oslo.service)

from cyborg_quota.cli import conductor as command
from cyborg_quota.cyborg import bind_tracker

DIRECTORY = pathlib.Path(os.environ["CYBORG_QUOTA_TEST_POINTS"])


@functools.cache
def lose_answers() -> None:
    """If a file ``lost`` exists, Cyborg's bind fails after its last step, as after the loss of its database.

    If a file ``stuck`` exists, a bound ARQ cannot be detached.
    """
    from cyborg.objects import ext_arq

    real = ext_arq.ExtARQ.bind

    def bind(self, context, deployable):
        real(self, context, deployable)
        if (DIRECTORY / "lost").exists():
            raise RuntimeError("the answer is lost")

    bind.is_job = True
    ext_arq.ExtARQ.bind = bind
    change = ext_arq.ExtARQ.update_check_state

    def update_check_state(self, context, state, scope=None):
        if state == "BindFailed" and (DIRECTORY / "stuck").exists():
            raise RuntimeError("it cannot be detached")
        return change(self, context, state, scope)

    ext_arq.ExtARQ.update_check_state = update_check_state


def at(point: str) -> None:
    """Wait or be killed at this point if a test has requested it."""
    order = DIRECTORY / point
    try:
        text = order.read_text()
    except FileNotFoundError:
        return
    (DIRECTORY / f"{point}.reached").touch()
    if text == "kill":
        os.killpg(os.getpgid(0), signal.SIGKILL)
    while order.exists():
        time.sleep(0.01)


class BindTracker(bind_tracker.BindTracker):
    def reserve_binds(self, wishes):
        lose_answers()
        flights = super().reserve_binds(wishes)
        at("reserved")
        return flights


class BindReservation(bind_tracker.BindReservation):
    def commit(self, is_bound):
        at("bound")
        super().commit(is_bound)
        at("committed")


bind_tracker.BindTracker, bind_tracker.BindReservation = BindTracker, BindReservation


def needs_job(self, context, deployable):
    return (DIRECTORY / "job").exists() or needed(self, context, deployable)


from cyborg.objects.extarq.fpga_ext_arq import FPGAExtARQ  # noqa: E402  (after the command line was left alone)

needed, FPGAExtARQ._need_extra_bind_job = FPGAExtARQ._need_extra_bind_job, needs_job
if sys.argv[1] == "--own":
    from cyborg.cmd import conductor as command

    del sys.argv[1]
sys.exit(command.main())
