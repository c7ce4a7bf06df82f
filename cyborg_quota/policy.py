# SPDX-License-Identifier: Apache-2.0
"""The oslo.policy rules: who may set the limit of a project and see pods, and who may make each call of the REST API.

[oslo_policy] names the policy file. The personas are those of Cyborg 17: reader, manager, admin and service. Of these
rules, only RULE, ADD_CHILD, SEE_PODS and FITS_RULE also apply to programs that call the engine without the REST API.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from oslo_config import cfg

from cyborg_quota import exceptions, validation
from cyborg_quota.conf import loading
from cyborg_quota.types import Headroom, HistoryEntry, Over
from cyborg_quota.validation import Context

Named = TypeVar("Named", Headroom, HistoryEntry, Over)
"""A record that may have the name of a pod."""

RULE: Final = "cyborg_quota:limit:set"
DEFAULT: Final = "is_admin:True or ((role:admin or role:manager) and project_id:%(parent_id)s)"
"""An admin, or an administrator or manager of the direct parent, but not of one further up (as CERN specified)."""

ADMIN: Final = "cyborg_quota:admin_api"
PROJECT_READER: Final = "cyborg_quota:project_reader_api"
PROJECT_MANAGER: Final = "cyborg_quota:project_manager_api"
PARENT_MANAGER: Final = "cyborg_quota:parent_manager_api"
SERVICE: Final = "cyborg_quota:service_api"
GET: Final = "cyborg_quota:quota:get"
DESCENDANTS: Final = "cyborg_quota:quota:descendants"
LIST: Final = "cyborg_quota:quota:list"
OVER: Final = "cyborg_quota:quota:over"
PREVIEW: Final = "cyborg_quota:limit:preview"
REPORT: Final = "cyborg_quota:usage:report"
DEFAULTS: Final = "cyborg_quota:default:set"
TOTALS: Final = "cyborg_quota:total:set"
SET_PARENT: Final = "cyborg_quota:project:set_parent"
ADD_CHILD: Final = "cyborg_quota:project:add_child"
RESERVATIONS: Final = "cyborg_quota:reservation:list"
ALL_RESERVATIONS: Final = "cyborg_quota:reservation:list_all"
CAPACITY: Final = "cyborg_quota:capacity:list"
CHANGE_CAPACITY: Final = "cyborg_quota:capacity:change"
PODS: Final = "cyborg_quota:pod:list"
CHANGE_PODS: Final = "cyborg_quota:pod:change"
SELECT_POD: Final = "cyborg_quota:pod:select"
RESOURCES: Final = "cyborg_quota:resource:list"
CREATE_RESOURCES: Final = "cyborg_quota:resource:create"

_PERSONAS: Final = {
    ADMIN: ("role:admin", "An admin of the cloud, who may make every call."),
    PROJECT_READER: ("role:reader and project_id:%(project_id)s", "A reader of the project (a member is one too)."),
    PROJECT_MANAGER: ("role:manager and project_id:%(project_id)s", "A manager of the project."),
    PARENT_MANAGER: ("role:manager and project_id:%(parent_id)s", "A manager of the direct parent of the project."),
    SERVICE: ("role:service", "Another service of the cloud, such as Nova."),
}

_ADMIN_OR_SERVICE: Final = f"rule:{ADMIN} or rule:{SERVICE}"
_READER: Final = f"{_ADMIN_OR_SERVICE} or rule:{PROJECT_READER} or rule:{PARENT_MANAGER}"
_PROJECT: Final = "/v2/quotas/{project_id}"

_CALLS: Final[dict[str, tuple[str, str, tuple[tuple[str, str], ...]]]] = {
    GET: (
        _READER,
        "See the limits, the usage, the headroom, the overrides, the budgets and the history of a project, and check "
        "a request. A user whom this rule and the rule of the call refuse gets 404, as for a project that does not "
        "exist.",
        (
            *(("GET", _PROJECT + part) for part in ("", "/detail", "/defaults", "/tree", "/history")),
            ("GET", f"{_PROJECT}/overrides"),
            ("GET", f"{_PROJECT}/overrides/{{override_id}}"),
            ("POST", f"{_PROJECT}/check"),
            ("GET", "/v2/quota_usage?project_id={project_id}"),
        ),
    ),
    DESCENDANTS: (
        f"{_ADMIN_OR_SERVICE} or rule:{PROJECT_MANAGER}",
        "See all projects below a project in its tree, with their limits and usage.",
        (("GET", f"{_PROJECT}/tree"), ("GET", "/v2/quota_usage?project_id={project_id}&tree=true")),
    ),
    REPORT: (
        f"rule:{ADMIN}",
        "Report the accelerator-hours that all projects have used.",
        (("GET", "/v2/quota_usage"),),
    ),
    LIST: (
        _ADMIN_OR_SERVICE,
        "List the projects that have limits of their own, and all budgets.",
        (("GET", "/v2/quotas"),),
    ),
    DEFAULTS: (
        f"rule:{ADMIN}",
        "See and set the default limits of all projects.",
        (("GET", "/v2/quota_defaults"), ("PUT", "/v2/quota_defaults")),
    ),
    TOTALS: (
        f"rule:{ADMIN}",
        "See, set and remove the total limits over all projects.",
        (
            ("GET", "/v2/quota_totals"),
            ("PUT", "/v2/quota_totals"),
            ("DELETE", "/v2/quota_totals/{resource}"),
        ),
    ),
    SET_PARENT: (
        f"rule:{ADMIN}",
        "Add a project to the tree, move it, or remove it.",
        (("PUT", f"{_PROJECT}/tree"), ("DELETE", f"{_PROJECT}/tree")),
    ),
    RESERVATIONS: (
        _READER,
        "List the reservations of a project.",
        (("GET", "/v2/quota_reservations?project_id={project_id}"),),
    ),
    ALL_RESERVATIONS: (
        f"rule:{ADMIN}",
        "List the reservations of all projects.",
        (("GET", "/v2/quota_reservations"),),
    ),
    OVER: (_ADMIN_OR_SERVICE, "List what exceeds a limit.", (("GET", "/v2/quota_over"),)),
    PREVIEW: (f"rule:{ADMIN}", "See what setting limits would change.", (("POST", "/v2/quota_preview"),)),
    CAPACITY: (_ADMIN_OR_SERVICE, "List the providers, their inventories, and what is promised.", ()),
    CHANGE_CAPACITY: (f"rule:{ADMIN}", "Add, change and remove providers and inventories.", ()),
    PODS: (_ADMIN_OR_SERVICE, "List the pods, their measurements, and the bindings of projects to them.", ()),
    CHANGE_PODS: (f"rule:{ADMIN}", "Add, change and remove pods, and move or end the bindings of projects.", ()),
    SELECT_POD: (_ADMIN_OR_SERVICE, "Select the pod of a project, and see its name.", ()),
    RESOURCES: (f"{_ADMIN_OR_SERVICE} or role:reader", "List the resources, and what describes them.", ()),
    CREATE_RESOURCES: (f"rule:{ADMIN}", "Add resources, and change what describes them.", ()),
}
_SCOPES: Final = ["project"]
"""As Cyborg's. A token for a domain or for the system has no rights here, whatever its roles are."""

SEE_PODS: Final = "cyborg_quota:pod:see"
FITS_RULE: Final = "cyborg_quota:capacity:fits"

_OF_PROGRAMS: Final[dict[str, tuple[str, str, tuple[tuple[str, str], ...]]]] = {
    RULE: (
        DEFAULT,
        "Set or unset the limit, the minimum or the budget of a project, also a limit for a span of time. parent_id is "
        "the parent of the project; a root has none. is_admin is true on the command line, and in the REST API for "
        f"whom {ADMIN} allows; otherwise, a budget needs one of the parent.",
        (
            ("CLI", "cyborg-quota set RESOURCE=LIMIT PROJECT"),
            ("PUT", _PROJECT),
            ("PUT", f"{_PROJECT}/minimums"),
            ("DELETE", _PROJECT),
            ("POST", f"{_PROJECT}/overrides"),
            ("DELETE", f"{_PROJECT}/overrides/{{override_id}}"),
            ("PUT", f"{_PROJECT}/budgets"),
            ("POST", f"{_PROJECT}/budgets/adjust"),
            ("DELETE", f"{_PROJECT}/budgets"),
        ),
    ),
    ADD_CHILD: (
        "is_admin:True or (role:manager and project_id:%(project_id)s)",
        "Add a new project below a project, which is project_id. Unless an admin adds it, Keystone must have it below "
        "that project, and the ledger must not know it.",
        (("POST", f"{_PROJECT}/children"),),
    ),
    FITS_RULE: (
        "is_admin:True",
        "See what fits at providers, in the headroom of a project. Without it, a context gets what the "
        "quota permits. project_id is the project.",
        (("CLI", "cyborg-quota check --how-many --provider"),),
    ),
    SEE_PODS: (
        "is_admin:True",
        "See the names of pods: of the one to which a project is bound, and of limits per pod; and name "
        "the pod of a claim. A call of the REST API that names a pod needs this rule beside its own; a user whom this "
        "rule refuses gets 404, as for a pod that does not exist.",
        (
            ("CLI", "cyborg-quota pod select"),
            ("CLI", "cyborg-quota reserve --pod NAME"),
            ("GET", "/v2/quotas?pod={pod}"),
            ("GET", f"{_PROJECT}?pod={{pod}}"),
            ("PUT", _PROJECT),
            ("DELETE", f"{_PROJECT}?pod={{pod}}"),
            ("GET", f"{_PROJECT}/detail?pod={{pod}}"),
            ("POST", f"{_PROJECT}/check"),
            ("GET", f"{_PROJECT}/history"),
        ),
    ),
}
"""The rules that also apply to programs that call the engine without the REST API."""


def list_rules() -> list[Any]:
    """The rules of this package, for the entry point oslo.policy.policies."""
    from oslo_policy import policy

    from cyborg_quota.surface import table
    from cyborg_quota.types import grouped

    personas = [
        policy.RuleDefault(name, check, description, scope_types=_SCOPES)
        for name, (check, description) in _PERSONAS.items()
    ]
    # The calls that the table of operations generates, by their rule.
    routes = [operation.route for operation in table.operations().values() if operation.route is not None]
    generated = grouped(routes, lambda route: route.rule)
    documented = []
    for name, (check, description, operations) in {**_OF_PROGRAMS, **_CALLS}.items():
        calls = dict.fromkeys([*operations, *(route[:2] for route in generated.get(name, ()))])
        if calls:  # (A rule of a subject that is not installed has no calls.)
            described: Any = [{"method": method, "path": path} for method, path in calls]
            documented.append(policy.DocumentedRuleDefault(name, check, description, described, scope_types=_SCOPES))
    return [*personas, *documented]


@dataclasses.dataclass(eq=False)
class Policy:
    """Evaluates the rules. Without a configuration, only an admin's context is allowed.

    The first evaluation registers oslo.policy's options on ``conf`` and reads the policy file. A file that cannot be
    used is read again at the next evaluation; one that has changed, at the next start of the program. A decision is
    used again within its second, also one that depends on an ``http:`` check: oslo.policy inspects the signature of
    each check, so that the two rules of a GET would be a tenth of the processor time of the call.
    """

    _conf: cfg.ConfigOpts | None = None
    _enforcer: Any = None
    _decided: tuple[int, dict[Any, bool]] = dataclasses.field(
        default_factory=lambda: (0, {})
    )  # the decisions of one second

    def allows(self, context: Context, rule: str, project_id: str, parent_id: str | None = None) -> bool:
        """Whether the rule allows the context to do this with the project; an admin's context always."""
        return validation.is_admin(context) or self.permits(rule, context, project_id, parent_id)

    def visible(self, context: Context, project_id: str, records: Sequence[Named]) -> list[Named]:
        """The records that a user gets: without the names of pods, unless the context may see those of the project."""
        is_visible = not any(record.pod for record in records) or self.allows(context, SEE_PODS, project_id)
        return list(records) if is_visible else without_pods(records)

    def permits(self, rule: str, context: Context, project_id: str | None = None, parent_id: str | None = None) -> bool:
        """Whether the rule allows the call, also for an admin's context. Raises ConfigurationError for a bad file."""
        if self._conf is None:
            return validation.is_admin(context)
        creds = credentials(context)
        # Remove values that are None: oslo.policy compares strings, so two missing projects would be equal ("None").
        named = {"project_id": project_id, "parent_id": parent_id}
        target = {name: value for name, value in named.items() if value is not None}
        try:
            if self._enforcer is None:  # (Two threads may make one each.)
                # (Made at the first use: the import takes 0.1 s, and few commands need it.)
                enforcer = make_enforcer(self._conf)
                enforcer.load_rules()
                enforcer.use_conf = False  # (otherwise, each evaluation looks for the file in all directories)
                self._enforcer = enforcer
            second = int(time.monotonic())
            if second != self._decided[0]:
                self._decided = (second, {})
            decisions = self._decided[1]
            held = tuple((name, value if isinstance(value, str) else repr(value)) for name, value in creds.items())
            key = (rule, project_id, parent_id, held)
            if key not in decisions:
                decisions[key] = bool(self._enforcer.enforce(rule, target, creds))
            return decisions[key]
        except (cfg.Error, ValueError, OSError, SyntaxError) as error:
            raise exceptions.ConfigurationError(f"[oslo_policy] policy_file cannot be used: {error}") from error


def without_pods(records: Sequence[Named]) -> list[Named]:
    """The records, with "" in place of the names of pods."""
    return [dataclasses.replace(record, pod="") if record.pod else record for record in records]


def make_enforcer(conf: cfg.ConfigOpts) -> Any:
    """An enforcer of oslo.policy with the rules of this package and those of the policy file that ``conf`` names."""
    from oslo_policy import policy

    enforcer = policy.Enforcer(conf)
    enforcer.register_defaults(list_rules())
    return enforcer


def get_enforcer() -> Any:
    """The entry point oslo.policy.enforcer: of oslopolicy-validator, -list-redundant and -policy-generator.

    These programs have parsed their arguments into oslo.config's global object, pass nothing, and read that object
    afterwards; so it is used here, and nowhere else. Without --config-file, reads the default files of cyborg_quota.
    """
    conf = cfg.CONF
    if not conf.config_file and not conf.config_dir:
        files = cfg.find_config_files(project=loading.PROJECT, prog=loading.PROJECT)
        conf([], project=loading.PROJECT, default_config_files=files)
    return make_enforcer(conf)


def credentials(context: Context) -> dict[str, Any]:
    """The credentials of a context for a rule. A context need not come from oslo.context."""
    values = getattr(context, "to_policy_values", None)
    creds = dict(values()) if callable(values) else {"project_id": getattr(context, "project_id", None)}
    creds["roles"] = [str(role) for role in getattr(context, "roles", None) or ()]
    creds["is_admin"] = validation.is_admin(context)
    return {name: value for name, value in creds.items() if value is not None}
