# SPDX-License-Identifier: Apache-2.0
"""Who may set a project's limit: a rule of oslo.policy, in the policy file that [oslo_policy] names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from oslo_config import cfg

from cyborg_quota import exceptions, validation
from cyborg_quota.validation import Context

RULE: Final = "cyborg_quota:limit:set"
DEFAULT: Final = "is_admin:True or (role:admin and project_id:%(parent_id)s)"
"""An admin, or the administrator of the direct parent. Not one of a project further up: CERN's rule."""


def list_rules() -> list[Any]:
    """For oslo.policy's tools: the entry point oslo.policy.policies."""
    from oslo_policy import policy

    return [
        policy.DocumentedRuleDefault(
            name=RULE,
            check_str=DEFAULT,
            description="Set or unset the limit of a project. parent_id is the project it lies below; a root has none. "
            "(Defaults and the tree itself are an admin's to change.)",
            operations=[{"path": "cyborg-quota limit set --project", "method": "CLI"}],
        )
    ]


class Policy:
    """Asks the rule. Without a configuration, only an admin's context may.

    ``conf`` gets oslo.policy's own options at the first question, when the policy file is read too; a file that
    changes is read again.
    """

    def __init__(self, conf: cfg.ConfigOpts | None = None) -> None:
        self._conf = conf
        self._enforcer: Any = None

    def may_set(self, context: Context, project_id: str, parent_id: str | None) -> bool:
        """Whether the context may set this project's limit. Raises ConfigurationError for a file that is wrong."""
        if self._conf is None:
            return validation.is_admin(context)
        # What is None must not be there at all: oslo.policy compares texts, and None is the text of no project too.
        target = _given({"project_id": project_id, "parent_id": parent_id})
        try:
            return bool(self._rules(self._conf).enforce(RULE, target, credentials(context)))
        except (cfg.Error, ValueError, OSError, SyntaxError) as error:
            raise exceptions.ConfigurationError(f"[oslo_policy] policy_file cannot be used: {error}") from error

    def _rules(self, conf: cfg.ConfigOpts) -> Any:
        """The rules; made late, for the library takes a tenth of a second to load, and few commands ask it."""
        if self._enforcer is None:
            from oslo_policy import policy

            enforcer = policy.Enforcer(conf)
            enforcer.register_defaults(list_rules())
            self._enforcer = enforcer
        return self._enforcer


def credentials(context: Context) -> dict[str, Any]:
    """What a rule may ask of a context; of one that is no oslo.context's, what there is."""
    values = getattr(context, "to_policy_values", None)
    found = dict(values()) if callable(values) else {"project_id": getattr(context, "project_id", None)}
    found["roles"] = [str(role) for role in getattr(context, "roles", None) or ()]
    found["is_admin"] = validation.is_admin(context)
    return _given(found)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
