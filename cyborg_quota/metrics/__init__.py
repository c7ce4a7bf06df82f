# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus: counters of the calls of each process, and gauges of the ledger."""
