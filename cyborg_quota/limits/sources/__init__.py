# SPDX-License-Identifier: Apache-2.0
"""Limit sources: where the limits of projects come from. Loaded by the name in [limits] driver."""
