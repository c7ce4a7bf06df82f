# SPDX-License-Identifier: Apache-2.0
"""Which limits may be set along a tree, and what they bound: one small class each, loaded by stevedore."""
