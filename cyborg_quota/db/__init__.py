# SPDX-License-Identifier: Apache-2.0
"""Everything that speaks SQL. Imports nothing of limits, drivers or the engine."""
