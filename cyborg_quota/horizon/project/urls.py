# SPDX-License-Identifier: Apache-2.0
"""The pages of the panel."""

from __future__ import annotations

from django.urls import re_path

from cyborg_quota.horizon.project import views

urlpatterns = [re_path(r"^$", views.IndexView.as_view(), name="index")]
