# SPDX-License-Identifier: Apache-2.0
"""Admin > System > Accelerator Quotas."""
