# SPDX-License-Identifier: Apache-2.0
"""The documents that cyborg_quota implements, one module each, with their own examples."""
