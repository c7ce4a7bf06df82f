# SPDX-License-Identifier: Apache-2.0
"""The forms of the panel. They show a refusal of the service, in its words, and keep what was typed."""

from __future__ import annotations

from typing import Any, Final

from django.utils.translation import gettext_lazy as _
from horizon import forms, messages

from cyborg_quota.horizon import client, rows
from cyborg_quota.types import MAX_LIMIT, MAX_REASON_CHARS, UNLIMITED

_LIMIT: Final = "limit_"
"""The begin of the name of a field for a limit."""


class _QuotaForm(forms.SelfHandlingForm):
    """A form that makes one call. ``done``: what is shown if the service accepts it."""

    done: Any
    method = "DELETE"
    path = client.PROJECT
    reason = forms.CharField(
        label=_("Reason"), max_length=MAX_REASON_CHARS, required=False, help_text=_("For the history of the limits.")
    )

    @staticmethod
    def load(api: client.QuotaClient, ids: dict[str, str]) -> dict[str, Any]:  # noqa: ARG004
        """The initial values, besides the ids of the path."""
        return {}

    def body(self, data: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """What is sent, besides the reason."""
        return {}

    def handle(self, request: Any, data: dict[str, Any]) -> bool:
        """Make the call. Returns whether the service accepted it; if not, the form shows why."""
        try:
            warnings = client.of(request).change(
                self.method, self.path, self.initial["ids"], reason=data["reason"], **self.body(data)
            )
        except rows.QuotaUnauthorized:
            raise
        except rows.QuotaAPIError as error:
            self.api_error(client.with_names(request, error.detail))
            return False
        messages.success(request, self.done)
        for warning in warnings:
            messages.warning(request, warning)
        return True


_OF_LIMIT: Final[dict[str, Any]] = {"min_value": UNLIMITED, "max_value": MAX_LIMIT, "widget": forms.TextInput()}
"""What fields for limits have in common. (Horizon's number fields have buttons without names for a screen reader.)"""
_TIME_INPUT: Final = forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M")


class LimitsForm(_QuotaForm):
    """A field for each resource. Only those that the user changed are sent.

    The initial ``limits`` are read again when the form is sent, and may then be of other resources: the name of a field
    has that of its resource.
    """

    method = "PUT"

    def __init__(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(request, *args, **kwargs)
        self._resources = {f"{_LIMIT}{resource}": resource for resource in self.initial["limits"]}
        for name, resource in self._resources.items():
            limit = self.initial["limits"][resource]
            shown = self.data.get(self.add_initial_prefix(name)) if self.is_bound else limit
            # The hidden initial value tells a change of this user from one that another user made meanwhile.
            self.fields[name] = forms.IntegerField(
                label=resource,
                initial=limit,
                required=shown not in (None, ""),
                show_hidden_initial=True,
                **_OF_LIMIT,
            )
        self.order_fields([*self._resources])

    def body(self, data: dict[str, Any]) -> dict[str, Any]:
        """The limits that the user changed since the form was shown; and whether they are forced."""
        changed = {resource: data[name] for name, resource in self._resources.items() if name in self.changed_data}
        return {"quota": changed, "force": data.get("force")}

    def clean(self) -> Any:
        """Refuse a form without a change."""
        if not self.errors and self._resources.keys().isdisjoint(self.changed_data):
            raise forms.ValidationError(_("No limit was changed."))
        return super().clean()


class SetLimitsForm(LimitsForm):
    """Sets limits of a project."""

    done = _("The limits were set.")
    force = forms.BooleanField(label=_("Force: permit limits below what the project holds"), required=False)

    @staticmethod
    def load(api: client.QuotaClient, ids: dict[str, str]) -> dict[str, Any]:
        """The limits that apply while no override does; None: no limit is set."""
        defaults = api.quota(f"{client.PROJECT}/defaults", {"project_id": ids["project_id"]})
        listed = api.call("GET", "/quotas", params={"project_id": ids["project_id"]})["quotas"]
        own = listed[0]["quota"] if listed else {}
        return {"limits": dict(sorted({**defaults, **own}.items()))}


class UnsetLimitsForm(_QuotaForm):
    """Removes all limits of a project, so that the defaults apply."""

    done = _("The limits were removed.")


class SetDefaultsForm(LimitsForm):
    """Sets default limits."""

    done = _("The default limits were set.")
    path = client.DEFAULTS

    @staticmethod
    def load(api: client.QuotaClient, ids: dict[str, str]) -> dict[str, Any]:  # noqa: ARG004
        """The present default limits."""
        return {"limits": api.quota(client.DEFAULTS)}


class AddOverrideForm(_QuotaForm):
    """Sets the limit of a resource for a span of time."""

    done = _("The override was added.")
    method = "POST"
    path = f"{client.PROJECT}/overrides"
    field_order = ("resource", "limit", "start", "until")
    resource = forms.ChoiceField(label=_("Resource"))
    limit = forms.IntegerField(label=_("Limit"), help_text=_("-1 means unlimited."), **_OF_LIMIT)
    start = forms.DateTimeField(
        label=_("From"), help_text=_("Without it, the limit applies at once."), required=False, widget=_TIME_INPUT
    )
    until = forms.DateTimeField(label=_("Until"), widget=_TIME_INPUT)

    @staticmethod
    def load(api: client.QuotaClient, ids: dict[str, str]) -> dict[str, Any]:
        """The resources."""
        return {"resources": list(api.quota(client.PROJECT, ids))}

    def __init__(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(request, *args, **kwargs)
        self.fields["resource"].choices = [(name, name) for name in self.initial["resources"]]

    def body(self, data: dict[str, Any]) -> dict[str, Any]:
        """The override. The times of the form are in the time zone of the user."""
        times = {name: data[name].isoformat() for name in ("start", "until") if data[name]}
        return {"override": {"quota": {data["resource"]: data["limit"]}, **times}}


class CancelOverrideForm(_QuotaForm):
    """Cancels an override."""

    done = _("The override was cancelled.")
    path = f"{client.PROJECT}/overrides/{{override_id}}"
