# SPDX-License-Identifier: Apache-2.0
"""The pages of the panel."""

from __future__ import annotations

from django.urls import re_path

from cyborg_quota.horizon.admin import views

urlpatterns = [
    re_path(r"^$", views.IndexView.as_view(), name="index"),
    re_path(r"^defaults/set/$", views.SetDefaultsView.as_view(), name="set_defaults"),
    re_path(r"^project/(?P<project_id>[^/]+)/$", views.DetailView.as_view(), name="detail"),
    re_path(r"^project/(?P<project_id>[^/]+)/set/$", views.SetLimitsView.as_view(), name="set"),
    re_path(r"^project/(?P<project_id>[^/]+)/unset/$", views.UnsetLimitsView.as_view(), name="unset"),
    re_path(r"^project/(?P<project_id>[^/]+)/override/$", views.AddOverrideView.as_view(), name="override"),
    re_path(
        r"^project/(?P<project_id>[^/]+)/override/(?P<override_id>[^/]+)/cancel/$",
        views.CancelOverrideView.as_view(),
        name="cancel_override",
    ),
]
