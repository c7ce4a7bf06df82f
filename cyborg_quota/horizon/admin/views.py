# SPDX-License-Identifier: Apache-2.0
"""The pages of the panel."""

from __future__ import annotations

from typing import Any

from django import shortcuts
from django.urls import reverse
from django.utils.translation import gettext_lazy as _
from horizon import exceptions, forms, tabs

from cyborg_quota.horizon import client
from cyborg_quota.horizon.admin import forms as quota_forms
from cyborg_quota.horizon.admin import projects, tables
from cyborg_quota.horizon.admin import tabs as quota_tabs


class IndexView(tabs.TabbedTableView):
    """The quota of all projects."""

    tab_group_class = quota_tabs.QuotasTabs
    template_name = "accelerator_quota/admin.html"
    page_title = _("Accelerator Quotas")

    def post(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """After a change of the filter: show the first page."""
        if self.handle_server_filter(request, tables.ProjectsTable(request)):
            return shortcuts.redirect(reverse(tables.INDEX))
        return super().post(request, *args, **kwargs)


class DetailView(tabs.TabbedTableView):
    """The quota of one project."""

    tab_group_class = quota_tabs.ProjectTabs
    template_name = "horizon/common/_detail.html"
    page_title = "{{ project_name }}"

    def get_context_data(self, **kwargs: Any) -> Any:
        """The name of the project."""
        name = projects.name(self.request, self.kwargs["project_id"])
        return {**super().get_context_data(**kwargs), "project_name": name, "url": reverse(tables.INDEX)}


class _FormView(forms.ModalFormView):
    """A form that opens over the page."""

    template_name = "accelerator_quota/form.html"
    form_id = "quota_form"
    modal_id = "quota_modal"

    def get_initial(self) -> Any:
        """The initial values, from the service. Without them, the user is back at the list, with the reason."""
        if not hasattr(self, "_initial"):
            try:
                self._initial = {"ids": dict(self.kwargs), **self.load(client.of(self.request))}
            except Exception:
                exceptions.handle(self.request, client.NOT_RETRIEVED, redirect=reverse(tables.INDEX))
        return self._initial

    def load(self, api: client.QuotaClient) -> dict[str, Any]:  # noqa: ARG002
        """The initial values, besides the ids of the path."""
        return {}

    def get_context_data(self, **kwargs: Any) -> Any:
        """What the form shows beside its fields. The title has the name of the project."""
        title, project_id = str(self.page_title), self.kwargs.get("project_id")
        shown = {
            "modal_header": f"{title}: {projects.name(self.request, project_id)}" if project_id else title,
            "submit_url": self.request.path,
            "submit_label": self.page_title,
            "description": self.description,
        }
        return {**super().get_context_data(**kwargs), **shown}

    def get_success_url(self) -> str:
        """The page of the project, or the list of all."""
        project_id = self.kwargs.get("project_id")
        return str(reverse(tables.DETAIL, args=[project_id]) if project_id else reverse(tables.INDEX))

    get_cancel_url = get_success_url


class SetLimitsView(_FormView):
    """Set limits of a project."""

    form_class = quota_forms.SetLimitsForm
    page_title = _("Set Limits")
    description = (
        _("The limits of a project, without its overrides. -1 means unlimited."),
        _("Only the limits that you change are set."),
        _("A limit is refused if it does not agree with the limits of the projects above or below this one."),
    )

    def load(self, api: client.QuotaClient) -> dict[str, Any]:
        """The present limits, without and with overrides."""
        limits = api.limits_without_overrides(self.kwargs["project_id"])
        return {"limits": limits, "in_effect": api.quota(client.PROJECT, self.kwargs)}


class UnsetLimitsView(_FormView):
    """Remove all limits of a project."""

    form_class = quota_forms.UnsetLimitsForm
    page_title = _("Return to Defaults")
    description = (_("All limits of the project are removed, so that the defaults apply. Its overrides stay."),)


class SetDefaultsView(_FormView):
    """Set default limits."""

    form_class = quota_forms.SetDefaultsForm
    page_title = _("Set Default Limits")
    description = (_("The limits of projects without limits of their own. -1 means unlimited."),)

    def load(self, api: client.QuotaClient) -> dict[str, Any]:
        """The present default limits."""
        return {"limits": api.quota(client.DEFAULTS)}


class AddOverrideView(_FormView):
    """Set a limit for a span of time."""

    form_class = quota_forms.AddOverrideForm
    page_title = _("Add Override")
    description = (
        _("An override is a limit that applies between two times. Afterwards the former limit applies again."),
        _("The times are in your time zone."),
    )

    def load(self, api: client.QuotaClient) -> dict[str, Any]:
        """The resources."""
        return {"resources": list(api.quota(client.PROJECT, self.kwargs))}


class CancelOverrideView(_FormView):
    """Cancel an override."""

    form_class = quota_forms.CancelOverrideForm
    page_title = _("Cancel Override")
    description = (_("The former limit applies again at once."),)
