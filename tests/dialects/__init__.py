# SPDX-License-Identifier: Apache-2.0
"""What a database and its dialect must do, one module for each subject: the tests to run first on a new database."""
