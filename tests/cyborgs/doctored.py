# SPDX-License-Identifier: Apache-2.0
"""Cyborgs with one difference each, and the results of compatibility.py for them. Run by Cyborg's Python.

    python doctored.py VERSION

Prints as JSON: what cyborg-quota-conductor, and the loading of the API's module, do in a Cyborg that reports this
version; and {change: the error, or null}.
"""

import contextlib
import functools
import importlib
import io
import json
import sys
import traceback
import types
from unittest import mock

sys.path.pop(0)  # this directory

from cyborg_quota import exceptions
from cyborg_quota.cyborg import compatibility

VERSIONS = ("15.0.1", "16.0.1", "18.0.0", "17.0.0.0rc1", "unknown")


def error_of(check=compatibility.check_services):
    try:
        check()
    except exceptions.ConfigurationError as error:
        return str(error)
    return None


def of_version(version):
    return mock.patch.object(compatibility.importlib.metadata, "version", return_value=version)


def holder(module, name):
    *parts, last = name.split(".")
    return functools.reduce(getattr, parts, importlib.import_module(module)), last


@contextlib.contextmanager
def missing(module, name):
    """Also removes inherited attributes: from the class that defines them."""
    where, last = holder(module, name)
    if hasattr(where, "__mapper__"):  # SQLAlchemy does not allow the removal of a column
        kept = {column: getattr(where, column) for column in list(where.__mapper__.columns.keys()) if column != last}
        with mock.patch.object(sys.modules[module], where.__name__, types.SimpleNamespace(**kept)):
            yield
        return
    owner = next(one for one in getattr(where, "__mro__", [where]) if last in vars(one))
    with mock.patch.object(owner, last):  # (which puts it back)
        delattr(owner, last)
        yield


def other_signature(module, name):
    where, last = holder(module, name)
    return mock.patch.object(where, last, lambda: None)


def own_name(self):
    super(ConductorAPI, self).__init__()  # noqa: F821  (as Cyborg 15 has it)


def doctor():
    from cyborg.api import hooks
    from cyborg.conductor import rpcapi
    from cyborg.objects import base
    from cyborg.objects.extarq import fpga_ext_arq

    changes = {f"version {version}": of_version(version) for version in VERSIONS}
    for part in compatibility.SERVICE_PARTS:
        changes[f"without {part.module}.{part.name}"] = missing(part.module, part.name)
        if part.positional or part.keywords:
            changes[f"other arguments of {part.module}.{part.name}"] = other_signature(part.module, part.name)
    fails = {"side_effect": AttributeError("no attribute\n'y'")}
    changes |= {
        "nothing": contextlib.nullcontext(),
        "super() with its own name": mock.patch.object(rpcapi.ConductorAPI, "__init__", own_name),
        "ConductorAPI without an own __init__": missing("cyborg.conductor.rpcapi", "ConductorAPI.__init__"),
        "a module that does not load": mock.patch.object(compatibility.importlib, "import_module", **fails),
        "hooks with an rpcapi of their own": mock.patch.object(hooks, "rpcapi", None),
        "bind is no job": mock.patch.object(fpga_ext_arq.FPGAExtARQ.bind, "is_job", False),
        "a module that is gone": mock.patch.dict(sys.modules, {"cyborg.api.hooks": None}),
    }
    found = {"nothing, records": error_of(lambda: compatibility.check(compatibility.RECORD_PARTS))}
    for name, change in changes.items():
        with change:
            found[name] = error_of()
    with mock.patch.object(fpga_ext_arq, "FPGAExtARQ", None):
        found["a class that is something else"] = error_of(
            lambda: compatibility.check((), compatibility._replacement_problems())
        )
    with mock.patch.object(base.CyborgObjectRegistry, "registration_hook", lambda *_: None):
        from cyborg_quota.cyborg import objects

        found["a registry that keeps its own objects"] = error_of(objects.install)
    found["our objects, registered"] = error_of(objects.install)
    check_rest_api = functools.partial(compatibility.check, compatibility.REST_PARTS)
    found["REST API"] = error_of(check_rest_api)
    for call in compatibility.REST_PARTS:
        with missing(call.module, call.name):
            found[f"without {call.module}.{call.name}"] = error_of(check_rest_api)
    return found


def start():
    """(exit status, stdout, stderr) of cyborg-quota-conductor"""
    from cyborg_quota.cli import conductor as command

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = command.main()
    return status, out.getvalue(), err.getvalue()


def serve():
    """The last line that a WSGI server logs, which loads the API's module."""
    try:
        importlib.import_module("cyborg_quota.cyborg.wsgi")
    except Exception:
        return traceback.format_exc().splitlines()[-1]
    return ""


[version] = sys.argv[1:]
sys.argv[1:] = []
with of_version(version):
    found = {"start": start(), "serve": serve()}  # first: nothing of Cyborg is loaded yet
print(json.dumps({**found, "doctor": doctor()}))
