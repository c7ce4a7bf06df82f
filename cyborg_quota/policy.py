# SPDX-License-Identifier: Apache-2.0
"""The rules of oslo.policy: who may set the limit of a project, who sees pods, and what fits at providers.

[oslo_policy] names the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from oslo_config import cfg

from cyborg_quota import exceptions, validation
from cyborg_quota.validation import Context

RULE: Final = "cyborg_quota:limit:set"
DEFAULT: Final = "is_admin:True or (role:admin and project_id:%(parent_id)s)"
"""An admin, or an administrator of the direct parent, but not of an ancestor above it (as CERN specified)."""

SEE_PODS: Final = "cyborg_quota:pod:see"

FITS_RULE: Final = "cyborg_quota:capacity:fits"
FITS_DEFAULT: Final = "is_admin:True"


def list_rules() -> list[Any]:
    """The rules of this package, for the entry point oslo.policy.policies."""
    from oslo_policy import policy

    return [
        policy.DocumentedRuleDefault(
            name=RULE,
            check_str=DEFAULT,
            description="Set or unset the limit of a project. parent_id is the parent of the project; a root has none. "
            "(Only an admin may change the defaults and the project tree.)",
            operations=[{"path": "cyborg-quota limit set --project", "method": "CLI"}],
        ),
        policy.DocumentedRuleDefault(
            name=FITS_RULE,
            check_str=FITS_DEFAULT,
            description="See what fits at providers, in the headroom of a project. Without it, a context gets what the "
            "quota permits. project_id is the project.",
            operations=[{"path": "cyborg-quota check --how-many --provider", "method": "CLI"}],
        ),
        policy.DocumentedRuleDefault(
            name=SEE_PODS,
            check_str="is_admin:True",
            description="See the name of the pod to which a project is bound.",
            operations=[{"path": "cyborg-quota pod select", "method": "CLI"}],
        ),
    ]


class Policy:
    """Evaluates the rules. Without a configuration, only an admin's context is allowed.

    The first evaluation registers oslo.policy's options on ``conf`` and reads the policy file. The file is read again
    after it has changed.
    """

    def __init__(self, conf: cfg.ConfigOpts | None = None) -> None:
        self._conf = conf
        self._enforcer: Any = None

    def may_set(self, context: Context, project_id: str, parent_id: str | None) -> bool:
        """Whether the context may set this project's limit. Raises ConfigurationError for an invalid file."""
        return self._enforce(RULE, context, {"project_id": project_id, "parent_id": parent_id})

    def allows(self, context: Context, rule: str, project_id: str) -> bool:
        """Whether the rule allows the context to do this with the project. Raises ConfigurationError."""
        return validation.is_admin(context) or self._enforce(rule, context, {"project_id": project_id})

    def _enforce(self, rule: str, context: Context, target: Mapping[str, str | None]) -> bool:
        if self._conf is None:
            return validation.is_admin(context)
        # Remove values that are None: oslo.policy compares strings, so two missing projects would be equal ("None").
        try:
            return bool(self._rules(self._conf).enforce(rule, _without_none(target), credentials(context)))
        except (cfg.Error, ValueError, OSError, SyntaxError) as error:
            raise exceptions.ConfigurationError(f"[oslo_policy] policy_file cannot be used: {error}") from error

    def _rules(self, conf: cfg.ConfigOpts) -> Any:
        """The enforcer, created at the first use: the import takes 0.1 s, and few commands need it."""
        if self._enforcer is None:
            self._enforcer = make_enforcer(conf)
        return self._enforcer


def make_enforcer(conf: cfg.ConfigOpts) -> Any:
    """An enforcer of oslo.policy with the rules of this package and those of the policy file that ``conf`` names."""
    from oslo_policy import policy

    enforcer = policy.Enforcer(conf)
    enforcer.register_defaults(list_rules())
    return enforcer


def credentials(context: Context) -> dict[str, Any]:
    """The credentials of a context for a rule. A context need not come from oslo.context."""
    values = getattr(context, "to_policy_values", None)
    creds = dict(values()) if callable(values) else {"project_id": getattr(context, "project_id", None)}
    creds["roles"] = [str(role) for role in getattr(context, "roles", None) or ()]
    creds["is_admin"] = validation.is_admin(context)
    return _without_none(creds)


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
