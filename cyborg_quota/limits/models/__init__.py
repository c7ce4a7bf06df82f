# SPDX-License-Identifier: Apache-2.0
"""Enforcement models: which limits may be set in a project tree, and which usage they limit. Loaded by stevedore."""
