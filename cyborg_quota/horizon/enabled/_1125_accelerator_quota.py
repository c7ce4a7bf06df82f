# SPDX-License-Identifier: Apache-2.0
"""What the panels of accelerator quota share: needed by each of them."""

from cyborg_quota.horizon import rows

FEATURE = "accelerator_quota"
ADD_INSTALLED_APPS = ["cyborg_quota.horizon"]
ADD_EXCEPTIONS = rows.BY_CATEGORY
