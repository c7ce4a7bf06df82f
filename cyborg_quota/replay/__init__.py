# SPDX-License-Identifier: Apache-2.0
"""Traces of attaches: reading, replaying, totals and charts."""
