# SPDX-License-Identifier: Apache-2.0
"""Starts programs as forks of an interpreter that has loaded the libraries. Run by the Python of Cyborg's environment.

A service takes a second and a half to start, mostly for imports that all services need. Here they are done once.
Cyborg, Placement, cyborg_quota and oslo.service are not loaded in advance (oslo.service reads how to run each program
when it is imported), so a program runs as it would without this. The interpreter is isolated (-I), so that only
installed packages are imported. Commands are lines of JSON: see starting.py. The arguments name packages that must not
be loaded here: Nova does not start if eventlet was imported before.
"""

import ctypes
import importlib
import json
import os
import runpy
import signal
import sys

LIBRARIES = (
    "alembic.command",
    "cliff.app",
    "futurist",
    "kombu.transport.pyamqp",
    "keystonemiddleware.auth_token",
    "openstack.connection",
    "oslo_concurrency.lockutils",
    "oslo_db.sqlalchemy.enginefacade",
    "oslo_log.log",
    "oslo_middleware",
    "oslo_policy.policy",
    "pecan",
    "pymysql",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.orm",
    "waitress",
    "webob",
    "wsme",
)
NOT_LOADED = {"cyborg", "cyborg_quota", "oslo_service", "placement"}
PR_SET_PDEATHSIG = 1


def become(order):
    """In a fork: run the program as if it had been started directly."""
    parent = os.getppid()
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in ((1, order["out"]), (2, order["err"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), number)
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    script, *arguments = order["command"]
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")
    sys.exit(0)


def main():
    for name in sys.argv[1:]:
        sys.modules[name] = None  # an import of it fails
    for name in LIBRARIES:
        importlib.import_module(name)
    for name in sys.argv[1:]:
        del sys.modules[name]
    assert not NOT_LOADED & sys.modules.keys()
    for line in sys.stdin:
        order = json.loads(line)
        if "reap" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["reap"], 0)[1])
        else:
            answer = os.fork()
            if not answer:
                become(order)
        print(answer, flush=True)


main()
