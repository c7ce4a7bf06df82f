# SPDX-License-Identifier: Apache-2.0
"""Benchmarks. They compare variants side by side in one run, as ratios. ``tools/benchmark.sh`` runs them all."""
