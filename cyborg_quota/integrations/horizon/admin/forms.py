# SPDX-License-Identifier: Apache-2.0
"""The forms of the panel. They show a refusal of the service, in its words, and keep what was typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.utils.translation import gettext_lazy as _
from horizon import forms, messages

from cyborg_quota.integrations.horizon import client, errors
from cyborg_quota.integrations.horizon.admin import projects
from cyborg_quota.types import MAX_LIMIT, MAX_REASON_CHARS, UNLIMITED


class _QuotaForm(forms.SelfHandlingForm):
    """A form that makes one call."""

    def call(self, request: Any, make: Callable[[client.QuotaClient], None], done: Any) -> bool:
        """Make the call. Returns whether the service accepted it; if not, the form shows why."""
        try:
            make(client.of(request))
        except errors.QuotaUnauthorized:
            raise
        except errors.QuotaAPIError as error:
            self.api_error(projects.with_names(request, error.detail))
            return False
        messages.success(request, done)
        return True


def reason_field() -> Any:
    """The field for the reason of a change."""
    return forms.CharField(
        label=_("Reason"), max_length=MAX_REASON_CHARS, required=False, help_text=_("For the history of the limits.")
    )


def limit_field(label: Any, **options: Any) -> Any:
    """A field for a limit. A text field: the buttons of Horizon's number fields have no name for a screen reader."""
    widget = forms.TextInput()
    return forms.IntegerField(label=label, min_value=UNLIMITED, max_value=MAX_LIMIT, widget=widget, **options)


class LimitsForm(_QuotaForm):
    """A field for each resource. Only those that the user changed are sent."""

    def __init__(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(request, *args, **kwargs)
        limits = {f"limit_{number}": item for number, item in enumerate(self.initial["limits"].items())}
        self._resources = {name: resource for name, (resource, _limit) in limits.items()}
        for name, (resource, limit) in limits.items():
            # The hidden initial value tells a change of this user from one that another user made meanwhile.
            self.fields[name] = limit_field(
                resource, initial=limit, required=limit is not None, show_hidden_initial=True
            )
        self.order_fields([*limits])

    reason = reason_field()

    def changed_limits(self, data: dict[str, Any]) -> dict[str, int]:
        """The limits that the user changed since the form was shown."""
        return {resource: data[name] for name, resource in self._resources.items() if name in self.changed_data}

    def clean(self) -> Any:
        """Refuse a form without a change."""
        data = super().clean()
        if not self.errors and not self.changed_limits(data):
            raise forms.ValidationError(_("No limit was changed."))
        return data


class SetLimitsForm(LimitsForm):
    """Sets limits of a project."""

    force = forms.BooleanField(label=_("Permit limits below what the project holds"), required=False)

    def handle(self, request: Any, data: dict[str, Any]) -> bool:
        """Set them."""
        project_id, limits = self.initial["project_id"], self.changed_limits(data)
        return self.call(
            request,
            lambda api: api.set_limits(project_id, limits, data["reason"], force=data["force"]),
            _("The limits were set."),
        )


class UnsetLimitsForm(_QuotaForm):
    """Removes all limits of a project, so that the defaults apply."""

    reason = reason_field()

    def handle(self, request: Any, data: dict[str, Any]) -> bool:
        """Remove them."""
        project_id = self.initial["project_id"]
        return self.call(
            request, lambda api: api.unset_limits(project_id, data["reason"]), _("The limits were removed.")
        )


class SetDefaultsForm(LimitsForm):
    """Sets default limits."""

    def handle(self, request: Any, data: dict[str, Any]) -> bool:
        """Set them."""
        limits = self.changed_limits(data)
        return self.call(
            request, lambda api: api.set_default_limits(limits, data["reason"]), _("The default limits were set.")
        )


def _time_field(label: Any, help_text: Any, *, required: bool) -> Any:
    return forms.DateTimeField(
        label=label,
        required=required,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        help_text=help_text,
    )


class AddOverrideForm(_QuotaForm):
    """Sets the limit of a resource for a span of time."""

    resource = forms.ChoiceField(label=_("Resource"))
    limit = limit_field(_("Limit"), help_text=_("-1 means unlimited."))
    start = _time_field(_("From"), _("Without it, the limit applies at once."), required=False)
    until = _time_field(_("Until"), "", required=True)
    reason = reason_field()

    def __init__(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(request, *args, **kwargs)
        self.fields["resource"].choices = [(name, name) for name in self.initial["resources"]]

    def handle(self, request: Any, data: dict[str, Any]) -> bool:
        """Set it. The times of the form are in the time zone of the user."""
        start = data["start"] and data["start"].isoformat()
        limits = {data["resource"]: data["limit"]}
        project_id = self.initial["project_id"]
        return self.call(
            request,
            lambda api: api.add_override(project_id, limits, start, data["until"].isoformat(), data["reason"]),
            _("The override was added."),
        )
