# SPDX-License-Identifier: Apache-2.0
"""What it costs, measured: side by side, in one run, as ratios. ``tools/benchmark.sh`` runs it all."""
