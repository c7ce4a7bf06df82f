# SPDX-License-Identifier: Apache-2.0
"""Starts programs as forks of an interpreter that has loaded the libraries. Run by the Python of Cyborg's environment.

A service takes a second and a half to start, mostly for imports that all services need. Here they are done once.
Cyborg, Placement, cyborg_quota and oslo.service are not loaded in advance (oslo.service reads how to run each program
when it is imported), so a program runs as it would without this. A program that is started often is forked from a
template instead: a fork of this process that has also loaded the program's own modules, in the order in which the
program loads them. The interpreter is isolated (-I), so that only installed packages are imported; libraries that the
environment does not have are left out. Commands are lines of JSON: see starting.py. The arguments name packages that
must not be loaded here: Nova does not start if eventlet was imported before.
"""

import ctypes
import gc
import importlib.util
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


def end_with(parent):
    """In a fork: end when the parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def become(order, parent):
    """In a fork: run the program as if it had been started directly."""
    os.setsid()
    end_with(parent)
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


def load(modules):
    """Import modules. ``MODULE:FUNCTION`` also calls a function of a module."""
    for entry in modules:
        name, _, function = entry.partition(":")
        module = importlib.import_module(name)
        if function:
            getattr(module, function)()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the pages of all these objects


class Template:
    """A fork of this process that loads further modules, and then starts programs by the same commands."""

    def __init__(self, modules):
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        parent = os.getpid()
        if not os.fork():
            end_with(parent)
            os.dup2(orders, 0)
            os.dup2(answers, 1)
            for number in (orders, self._orders, self._answers, answers):
                os.close(number)
            load(modules)
            serve()
            os._exit(0)
        os.close(orders)
        os.close(answers)
        self._answers = os.fdopen(self._answers)

    def send(self, line):
        os.write(self._orders, line.encode())
        return json.loads(self._answers.readline())


def serve():
    """Obey the commands that arrive on standard input."""
    templates, owners = {}, {}
    with open(0, closefd=False) as lines:
        for line in lines:
            print(json.dumps(obey(line, templates, owners)), flush=True)


def obey(line, templates, owners):
    """Return the answer to a command. ``owners``: {process ID of a program: the template that started it}."""
    order, parent = json.loads(line), os.getpid()
    if "modules" in order:
        templates[order["template"]] = Template(order["modules"])
        return {}
    if template := templates.get(order.get("template")) or owners.pop(order.get("reap"), None):
        answer = template.send(line)
        if "pid" in answer:
            owners[answer["pid"]] = template
        return answer
    if "reap" in order:
        _, status, usage = os.wait4(order["reap"], 0)
        return {"status": os.waitstatus_to_exitcode(status), "peak_kib": usage.ru_maxrss}
    pid = os.fork()
    if not pid:
        become(order, parent)
    return {"pid": pid}


def main():
    for name in sys.argv[1:]:
        sys.modules[name] = None  # an import of it fails
    load(name for name in LIBRARIES if importlib.util.find_spec(name.partition(".")[0]))
    for name in sys.argv[1:]:
        del sys.modules[name]
    assert not NOT_LOADED & sys.modules.keys()
    serve()


main()
