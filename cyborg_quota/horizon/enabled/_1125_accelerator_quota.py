# SPDX-License-Identifier: Apache-2.0
"""What the panels of accelerator quota share: needed by each of them."""

from cyborg_quota.horizon import errors

FEATURE = "accelerator_quota"
ADD_INSTALLED_APPS = ["cyborg_quota.horizon"]
ADD_EXCEPTIONS = errors.BY_CATEGORY
