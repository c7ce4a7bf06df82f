# SPDX-License-Identifier: Apache-2.0
"""The pages of the panel of the admin."""

from __future__ import annotations

from typing import Any

from django import shortcuts
from django.urls import re_path, reverse
from django.utils.translation import gettext_lazy as _
from horizon import exceptions, forms, tabs
from openstack_dashboard.api import keystone

from cyborg_quota.horizon import client, tables
from cyborg_quota.horizon import forms as quota_forms
from cyborg_quota.horizon import tabs as quota_tabs


class IndexView(tabs.TabbedTableView):
    """The quota of all projects."""

    tab_group_class = quota_tabs.QuotasTabs
    template_name = "accelerator_quota/admin.html"
    page_title = _("Accelerator Quotas")

    def get_context_data(self, **kwargs: Any) -> Any:
        """The tabs, and where limits are set."""
        return {**super().get_context_data(**kwargs), "read_only": client.read_only(self.request)}

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
        name = client.name_of(self.request, keystone.tenant_get, self.kwargs["project_id"])
        return {**super().get_context_data(**kwargs), "project_name": name, "url": reverse(tables.INDEX)}


class FormView(forms.ModalFormView):
    """A form that opens over the page. ``description``: the paragraphs beside its fields."""

    description: Any = ()
    template_name = "accelerator_quota/form.html"
    form_id = "quota_form"
    modal_id = "quota_modal"

    def get_initial(self) -> Any:
        """The initial values, from the service. Without them, the user is back at the list, with the reason."""
        if not hasattr(self, "_initial"):
            try:
                self._initial = {"ids": dict(self.kwargs), **self.form_class.load(client.of(self.request), self.kwargs)}
            except Exception:
                exceptions.handle(self.request, client.NOT_RETRIEVED, redirect=reverse(tables.INDEX))
        return self._initial

    def get_context_data(self, **kwargs: Any) -> Any:
        """What the form shows beside its fields. The title has the name of the project."""
        title, project_id = str(self.page_title), self.kwargs.get("project_id")
        if project_id:
            title += f": {client.name_of(self.request, keystone.tenant_get, project_id)}"
        shown = {
            "modal_header": title,
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


def _form(path: str, name: str, form_class: Any, title: Any, *description: Any) -> Any:
    view = FormView.as_view(form_class=form_class, page_title=title, description=description)
    return re_path(f"^{path}/$", view, name=name)


_PROJECT = "project/(?P<project_id>[^/]+)"
urlpatterns = [
    re_path("^$", IndexView.as_view(), name="index"),
    re_path(f"^{_PROJECT}/$", DetailView.as_view(), name="detail"),
    _form(
        "defaults/set",
        "set_defaults",
        quota_forms.SetDefaultsForm,
        _("Set Default Limits"),
        _("The limits of projects without limits of their own. -1 means unlimited."),
    ),
    _form(
        f"{_PROJECT}/set",
        "set",
        quota_forms.SetLimitsForm,
        _("Set Limits"),
        _("The limits of a project, without its overrides. -1 means unlimited."),
        _("Only the limits that you change are set."),
        _("A limit is refused if it does not agree with the limits of the projects above or below this one."),
    ),
    _form(
        f"{_PROJECT}/unset",
        "unset",
        quota_forms.UnsetLimitsForm,
        _("Return to Defaults"),
        _("All limits of the project are removed, so that the defaults apply. Its overrides stay."),
    ),
    _form(
        f"{_PROJECT}/override",
        "override",
        quota_forms.AddOverrideForm,
        _("Add Override"),
        _("An override is a limit that applies between two times. Afterwards the former limit applies again."),
        _("The times are in your time zone."),
    ),
    _form(
        f"{_PROJECT}/override/(?P<override_id>[^/]+)/cancel",
        "cancel_override",
        quota_forms.CancelOverrideForm,
        _("Cancel Override"),
        _("The former limit applies again at once."),
    ),
]
