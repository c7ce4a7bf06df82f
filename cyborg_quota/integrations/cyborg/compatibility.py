# SPDX-License-Identifier: Apache-2.0
"""Check that the installed Cyborg is supported: its version, and each name that is called, subclassed or replaced.

The check runs once, when a service or a command starts, so that an incompatible Cyborg is refused then, with one
sentence, and not during a bind. The parts of Cyborg that the other modules use are listed in this module only. Nothing
here opens a connection.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

from cyborg_quota import exceptions

DISTRIBUTION: Final = "openstack-cyborg"
TESTED: Final = (16, 17)
"""The major versions that the tests run with. A later version is accepted if it has every name listed below."""
TESTED_TEXT: Final = " and ".join(map(str, TESTED))


@dataclasses.dataclass(frozen=True)
class Call:
    """A function or class of Cyborg, the number of positional arguments and the keywords that it is called with.

    ``positional`` includes ``self``.
    """

    module: str
    name: str
    positional: int
    keywords: tuple[str, ...] = ()


_MISSING: Final = object()
_DB: Final = "cyborg.db.sqlalchemy.api"
_EXTARQ: Final = "cyborg.objects.ext_arq"
_FPGA: Final = "cyborg.objects.extarq.fpga_ext_arq"
_MANAGER: Final = "cyborg.conductor.manager"
_RPCAPI: Final = "cyborg.conductor.rpcapi"
_VERSIONS: Final = "cyborg.api.controllers.v2.versions"
_MODULES: Final = "cyborg.api, cyborg.conductor and cyborg.objects"
_PROGRAMS: Final = "cyborg.cmd"
"""The package of Cyborg's programs, which selects the backend of oslo.service when it is imported."""

_RECORD_CALLS: Final = (
    Call("cyborg.context", "get_admin_context", 0),
    Call("cyborg.db.api", "get_instance", 0),
    Call(_DB, "Connection.extarq_list", 2, ("uuid_range", "project_id")),
    Call(_DB, "model_query", 2),
    Call(_DB, "Connection.extarq_get", 3, ("project_id",)),
    Call(_DB, "Connection.device_profile_get_by_id", 3),
    Call(_DB, "Connection.device_profile_list", 2),
    Call(_DB, "Connection.deployable_get_by_rp_uuid", 3),
    Call(_DB, "Connection.attribute_get_by_deployable_id", 3),
    Call(_DB, "Connection.attribute_get_by_filter", 3),
)
_SERVICE_CALLS: Final = (
    Call("cyborg.common.service", "prepare_service", 1),
    Call("cyborg.common.service", "RPCService", 3),
    Call("cyborg.common.utils", "factory_register", 2),
    Call("cyborg.objects", "register_all", 0),
    Call("cyborg.objects.base", "CyborgObjectRegistry.register", 1),
    Call("cyborg.api.hooks", "ConductorAPIHook", 0),
    Call("cyborg.api.app", "setup_app", 0),
    Call(_MANAGER, "ConductorManager.init_host", 1),
    Call(_MANAGER, "ConductorManager.periodic_tasks", 2, ("raise_on_error",)),
    Call(_MANAGER, "ConductorManager.arq_apply_patch", 4),
    Call(_RPCAPI, "ConductorAPI.arq_apply_patch", 4),
    Call(_RPCAPI, "ConductorAPI.arq_create", 4),
    Call(_DB, "Connection.extarq_list", 2, ("project_id", "instance_uuid", "limit")),
    Call(_EXTARQ, "ExtARQ.apply_patch", 3),
    Call(_EXTARQ, "ExtARQ.factory", 1),
    Call(_EXTARQ, "ExtARQ.start_bind_job", 3),
    Call(_EXTARQ, "ExtARQ.bind", 3),
    Call(_EXTARQ, "ExtARQ.unbind", 2),
    Call(_EXTARQ, "ExtARQ.destroy", 2),
    Call(_EXTARQ, "ExtARQ.update_check_state", 3),
    Call(_EXTARQ, "ExtARQ._deallocate_attach_handle", 4),
    Call(_EXTARQ, "ExtARQ.delete_by_uuid", 2),
    Call(_EXTARQ, "ExtARQ.delete_by_instance", 2),
    Call(_FPGA, "FPGAExtARQ.start_bind_job", 3),
    Call(_FPGA, "FPGAExtARQ.bind", 3),
)
_REST_CALLS: Final = (
    Call(_VERSIONS, "min_version_string", 0),
    Call(_VERSIONS, "max_version_string", 0),
)
_COLUMNS: Final = {
    "ExtArq": (
        "updated_at",
        "uuid",
        "state",
        "project_id",
        "instance_uuid",
        "deployable_id",
        "device_profile_id",
        "device_profile_group_id",
        "device_rp_uuid",
        "hostname",
    ),
    "Deployable": ("id",),
    "Attribute": ("deployable_id", "key", "value"),
    "DeviceProfile": ("id", "uuid", "profile_json"),
}
"""{model of Cyborg: its columns that are read}."""
_RECORD_NAMES: Final = {
    "cyborg.common.constants": (
        "ARQ_BIND_FAILED",
        "ARQ_BIND_STARTED",
        "ARQ_BOUND",
        "ARQ_INITIAL",
        "ARQ_STATES_TRANSFORM_MATRIX",
        "ARQ_UNBOUND",
    ),
    "cyborg.common.exception": ("ARQBadState", "CyborgException", "ResourceNotFound"),
    "cyborg.conf": ("CONF",),
    _DB: ("main_context_manager",),
    "cyborg.db.sqlalchemy.models": tuple(
        f"{model}.{column}" for model, columns in _COLUMNS.items() for column in columns
    ),
}
_SERVICE_NAMES: Final = {
    "cyborg.common.constants": ("CONDUCTOR_TOPIC", "FPGA"),
    "cyborg.db.api": ("NULL_FILTER",),
    "cyborg.objects.arq": ("ARQ.uuid", "ARQ.project_id", "ARQ.hostname"),
    _EXTARQ: ("ExtARQ.arq", "ExtARQ.attach_handle_id", "ExtARQ.deployable_id"),
}
_STATUSES: Final = {"Forbidden": 403, "Conflict": 409, "ServiceUnavailable": 503, "InvalidParameterValue": 400}
"""{error class of Cyborg: its HTTP status}, for the errors that the integration raises."""


def version() -> str:
    """The version of the installed Cyborg. Raises ConfigurationError if there is none."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise exceptions.ConfigurationError(
            "Cyborg is not installed in this Python environment; install cyborg_quota into the one that Cyborg runs in."
        ) from None


def is_installed() -> bool:
    """Whether there is a Cyborg in this Python environment, of any version."""
    return any(importlib.metadata.distributions(name=DISTRIBUTION))


def is_tested(version_text: str) -> bool:
    """Whether the tests run with this version of Cyborg."""
    return _major(version_text) in TESTED


def check_records() -> None:
    """Check that commands can read the records of this Cyborg. Raises ConfigurationError."""
    _refuse_first(_problems(_RECORD_CALLS, _RECORD_NAMES))


def check_services() -> None:
    """Check that the conductor and the API of this Cyborg can run with quota. Raises ConfigurationError."""
    _refuse_first(_service_problems())


def check_rest_api() -> None:
    """Check that the REST API of quota can be mounted. Raises ConfigurationError.

    Cyborg's controllers can be imported only after its objects are registered, so check_services cannot do this.
    """
    _refuse_first(_problems(_REST_CALLS, {}))


def check_conductor() -> None:
    """Do what each of Cyborg's programs does first, then check as check_services does. Raises ConfigurationError.

    Call it before anything imports oslo.service, which selects its backend once, by default eventlet's. Cyborg's
    programs select that with threads and worker processes.
    """
    _refuse_first(_conductor_problems())


def check_registered(*replacements: type[Any]) -> None:
    """Check that Cyborg creates the registered replacement classes. Raises ConfigurationError.

    ``replacements``: the subclasses of Cyborg's ExtARQ and FPGAExtARQ, in this order.
    """
    from cyborg import objects
    from cyborg.common import constants

    registered = objects.ExtARQ, objects.FPGAExtARQ
    created = objects.ExtARQ, objects.ExtARQ.factory(constants.FPGA)
    if not registered == created == replacements:
        _refuse_first(iter(["cyborg.objects does not make the ExtARQ that was registered last"]))


def _refuse_first(problems: Iterator[str]) -> None:
    installed = version()
    if (major := _major(installed)) is not None and major < TESTED[0]:
        raise exceptions.ConfigurationError(
            f"Cyborg {installed} is too old: cyborg_quota works with Cyborg {TESTED_TEXT}."
        )
    try:
        problem = next(problems, None)
    except Exception as error:
        problem = f"{_MODULES} cannot be checked ({_one_line(error)})"
    if problem is not None:
        raise exceptions.ConfigurationError(
            f"Cyborg {installed} cannot run with cyborg_quota, which works with Cyborg {TESTED_TEXT}: {problem}."
        )


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _major(version_text: str) -> int | None:
    number = re.match(r"\d+", version_text)
    return None if number is None else int(number[0])


def _conductor_problems() -> Iterator[str]:
    try:
        importlib.import_module(_PROGRAMS)
    except Exception as error:
        yield f"{_PROGRAMS} cannot be imported ({_one_line(error)})"
    yield from _service_problems()


def _service_problems() -> Iterator[str]:
    if importlib.util.find_spec("cyborg") is None or importlib.util.find_spec("cyborg.wsgi") is None:
        yield "cyborg.wsgi is missing"
    yield from _problems(_RECORD_CALLS, _RECORD_NAMES)
    yield from _problems(_SERVICE_CALLS, _SERVICE_NAMES)
    yield from _status_problems()
    yield from _replacement_problems()


def _problems(calls: tuple[Call, ...], names: dict[str, tuple[str, ...]]) -> Iterator[str]:
    for module, members in names.items():
        for name in members:
            _, problem = _find_member(module, name)
            if problem:
                yield problem
    for call in calls:
        member, problem = _find_member(call.module, call.name)
        if problem:
            yield problem
        elif not _accepts(member, call):
            arguments = [*["..."] * call.positional, *(f"{name}=..." for name in call.keywords)]
            yield f"{call.module}.{call.name} does not take ({', '.join(arguments)})"


def _find_member(module: str, name: str) -> tuple[Any, str]:
    """The member and an empty text, or None and a description of the problem."""
    try:
        member: Any = importlib.import_module(module)
    except Exception as error:
        return None, f"{module} cannot be imported ({_one_line(error)})"
    for part in name.split("."):
        member = getattr(member, part, _MISSING)
        if member is _MISSING or getattr(member, "__isabstractmethod__", False):
            return None, f"{module}.{name} is missing"
    return member, ""


def _accepts(member: Any, call: Call) -> bool:
    try:
        inspect.signature(member).bind(*[None] * call.positional, **dict.fromkeys(call.keywords))
    except (TypeError, ValueError):  # ValueError: it has no signature
        return False
    return True


def _status_problems() -> Iterator[str]:
    from cyborg.common import exception

    for name, status in _STATUSES.items():
        if getattr(getattr(exception, name, None), "code", None) != status:
            yield f"cyborg.common.exception.{name} does not have HTTP status {status}"
        options = {"retry_after": 1} if status == 503 else {}
        try:
            made = getattr(exception, name)("A sentence.", **options)
            is_kept = str(made) == "A sentence." and options.items() <= getattr(made, "kwargs", {}).items()
        except Exception:
            is_kept = False
        if not is_kept:
            yield f"cyborg.common.exception.{name} cannot be made of a text{' and retry_after' if options else ''}"


def _replacement_problems() -> Iterator[str]:
    """Cyborg must look up the replaced classes at run time, and their code must not refer to them by name."""
    from cyborg.api import hooks
    from cyborg.conductor import rpcapi
    from cyborg.objects import ext_arq
    from cyborg.objects.extarq import fpga_ext_arq

    if getattr(hooks, "rpcapi", None) is not rpcapi:
        yield "cyborg.api.hooks does not look up cyborg.conductor.rpcapi.ConductorAPI"
    code = getattr(inspect.unwrap(rpcapi.ConductorAPI.__init__), "__code__", None)  # None: it has no own __init__
    if code is not None and "ConductorAPI" in code.co_names:
        yield "cyborg.conductor.rpcapi.ConductorAPI calls super() with its own name, and cannot be replaced"
    if not issubclass(fpga_ext_arq.FPGAExtARQ, ext_arq.ExtARQ) or ext_arq.ExtARQ.obj_name() != "ExtARQ":
        yield "cyborg.objects.extarq.fpga_ext_arq.FPGAExtARQ is not a subclass of ExtARQ"
    if getattr(fpga_ext_arq.FPGAExtARQ.bind, "is_job", None) is not True:
        yield "cyborg.objects.extarq.fpga_ext_arq.FPGAExtARQ.bind is not marked as a job"
