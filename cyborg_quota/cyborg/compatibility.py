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
import itertools
import operator
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from cyborg_quota import exceptions

DISTRIBUTION: Final = "openstack-cyborg"
TESTED: Final = (16, 17)
"""The major versions that the tests run with. A later version is accepted if it has every name listed below."""
TESTED_TEXT: Final = " and ".join(map(str, TESTED))


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of Cyborg; for a function or class, the positional arguments and the keywords that it is called with.

    ``positional``: their number, with ``self``; None: it is not called, or its arguments do not matter.
    """

    module: str
    name: str
    positional: int | None = None
    keywords: tuple[str, ...] = ()


_DB: Final = "cyborg.db.sqlalchemy.api"
_EXTARQ: Final = "cyborg.objects.ext_arq"
_FPGA: Final = "cyborg.objects.extarq.fpga_ext_arq"
_MANAGER: Final = "cyborg.conductor.manager"
_RPCAPI: Final = "cyborg.conductor.rpcapi"
_VERSIONS: Final = "cyborg.api.controllers.v2.versions"
_MODULES: Final = "cyborg.api, cyborg.conductor and cyborg.objects"

REST_PARTS: Final = (
    Part(_VERSIONS, "min_version_string", 0),
    Part(_VERSIONS, "max_version_string", 0),
)
"""What the REST API of quota uses when it is mounted. Cyborg's controllers can be imported only after its objects are
registered, so check_services does not check them."""
PROGRAM: Final = Part("cyborg.cmd", "__name__")
"""What each of Cyborg's programs imports first. It must be imported before anything imports oslo.service, which selects
its backend once, by default eventlet's: Cyborg's programs select that with threads and worker processes."""
_COLUMNS: Final = {
    "ExtArq": (
        "updated_at",
        "uuid",
        "state",
        "project_id",
        "instance_uuid",
        "device_profile_id",
        "device_profile_group_id",
        "device_rp_uuid",
        "hostname",
    ),
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
    "cyborg.common.exception": ("Conflict", "Forbidden", "InvalidParameterValue", "ServiceUnavailable"),
    "cyborg.db.api": ("NULL_FILTER",),
    "cyborg.objects.arq": ("ARQ.uuid", "ARQ.project_id", "ARQ.hostname"),
    _EXTARQ: ("ExtARQ.arq", "ExtARQ.attach_handle_id", "ExtARQ.deployable_id"),
}


RECORD_PARTS: Final = (
    *(Part(module, name) for module, names in _RECORD_NAMES.items() for name in names),
    Part("cyborg.context", "get_admin_context", 0),
    Part("cyborg.db.api", "get_instance", 0),
    Part(_DB, "Connection.extarq_list", 2, ("uuid_range", "project_id")),
    Part(_DB, "model_query", 2),
    Part(_DB, "Connection.extarq_get", 3, ("project_id",)),
    Part(_DB, "Connection.device_profile_get_by_id", 3),
    Part(_DB, "Connection.device_profile_list", 2),
)
"""What reads Cyborg's records uses."""
SERVICE_PARTS: Final = (
    *RECORD_PARTS,
    *(Part(module, name) for module, names in _SERVICE_NAMES.items() for name in names),
    Part("cyborg.common.service", "prepare_service", 1),
    Part("cyborg.common.service", "RPCService", 3),
    Part("cyborg.common.utils", "factory_register", 2),
    Part("cyborg.objects", "register_all", 0),
    Part("cyborg.objects.base", "CyborgObjectRegistry.register", 1),
    Part("cyborg.api.hooks", "ConductorAPIHook", 0),
    Part("cyborg.api.app", "setup_app", 0),
    Part(_MANAGER, "ConductorManager.init_host", 1),
    Part(_MANAGER, "ConductorManager.periodic_tasks", 2, ("raise_on_error",)),
    Part(_MANAGER, "ConductorManager.arq_apply_patch", 4),
    Part(_RPCAPI, "ConductorAPI.arq_apply_patch", 4),
    Part(_RPCAPI, "ConductorAPI.arq_create", 4),
    Part(_DB, "Connection.extarq_list", 2, ("project_id", "instance_uuid", "limit")),
    Part(_EXTARQ, "ExtARQ.apply_patch", 3),
    Part(_EXTARQ, "ExtARQ.factory", 1),
    Part(_EXTARQ, "ExtARQ.start_bind_job", 3),
    Part(_EXTARQ, "ExtARQ.bind", 3),
    Part(_EXTARQ, "ExtARQ.unbind", 2),
    Part(_EXTARQ, "ExtARQ.destroy", 2),
    Part(_EXTARQ, "ExtARQ.update_check_state", 3),
    Part(_EXTARQ, "ExtARQ._deallocate_attach_handle", 4),
    Part(_EXTARQ, "ExtARQ.delete_by_uuid", 2),
    Part(_EXTARQ, "ExtARQ.delete_by_instance", 2),
    Part(_FPGA, "FPGAExtARQ.start_bind_job", 3),
    Part(_FPGA, "FPGAExtARQ.bind", 3),
)
"""What the conductor and the API use."""


def version() -> str:
    """The version of the installed Cyborg. Raises ConfigurationError if there is none."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise exceptions.ConfigurationError(
            "Cyborg is not installed in this Python environment; install cyborg_quota into the one that Cyborg runs in."
        ) from None


def major(version_text: str) -> int | None:
    """The first number of a version."""
    number = re.match(r"\d+", version_text)
    return None if number is None else int(number[0])


def check(parts: Iterable[Part], problems: Iterable[str] = ()) -> None:
    """Check that this Cyborg has these parts, and none of the ``problems``. Raises ConfigurationError."""
    installed = version()
    if (number := major(installed)) is not None and number < TESTED[0]:
        raise exceptions.ConfigurationError(
            f"Cyborg {installed} is too old: cyborg_quota works with Cyborg {TESTED_TEXT}."
        )
    try:
        problem = next(itertools.chain(_problems(parts), problems), None)
    except Exception as error:
        problem = f"{_MODULES} cannot be checked ({_one_line(error)})"
    if problem is not None:
        raise exceptions.ConfigurationError(
            f"Cyborg {installed} cannot run with cyborg_quota, which works with Cyborg {TESTED_TEXT}: {problem}."
        )


def check_services(*first: Part) -> None:
    """Check that the conductor and the API of this Cyborg can run with quota. Raises ConfigurationError.

    ``first``: parts that are imported before the others.
    """
    check((*first, *SERVICE_PARTS), _replacement_problems())


def check_registered(*replacements: type[Any]) -> None:
    """Check that Cyborg creates the registered replacement classes. Raises ConfigurationError.

    ``replacements``: the subclasses of Cyborg's ExtARQ and FPGAExtARQ, in this order.
    """
    from cyborg import objects
    from cyborg.common import constants

    registered = objects.ExtARQ, objects.FPGAExtARQ
    created = objects.ExtARQ, objects.ExtARQ.factory(constants.FPGA)
    if not registered == created == replacements:
        check((), ["cyborg.objects does not create the ExtARQ class of cyborg_quota"])


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _problems(parts: Iterable[Part]) -> Iterator[str]:
    for part in parts:
        try:
            module = importlib.import_module(part.module)
        except Exception as error:
            yield f"{part.module} cannot be imported ({_one_line(error)})"
            continue
        try:
            member: Any = operator.attrgetter(part.name)(module)
        except AttributeError:
            member = None
        if member is None or getattr(member, "__isabstractmethod__", False):
            yield f"{part.module}.{part.name} is missing"
        elif part.positional is not None and not _accepts(member, part.positional, part.keywords):
            arguments = [*["..."] * part.positional, *(f"{name}=..." for name in part.keywords)]
            yield f"{part.module}.{part.name} does not take ({', '.join(arguments)})"


def _accepts(member: Any, positional: int, keywords: Iterable[str]) -> bool:
    try:
        inspect.signature(member).bind(*[None] * positional, **dict.fromkeys(keywords))
    except (TypeError, ValueError):  # ValueError: it has no signature
        return False
    return True


def _replacement_problems() -> Iterator[str]:
    """Cyborg must look up the replaced classes at run time, and their code must not refer to them by name.

    And it must have the application that is replaced.
    """
    if importlib.util.find_spec("cyborg.wsgi") is None:
        yield "cyborg.wsgi is missing"
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
