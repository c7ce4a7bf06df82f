# SPDX-License-Identifier: Apache-2.0
"""The tests. Whoever runs them, with stestr or unittest: a test's log is shown with its failure, and not otherwise."""

import os

# oslotest reads these. Without them every library's log goes to the terminal, from DEBUG on.
os.environ.setdefault("OS_LOG_CAPTURE", "1")
os.environ.setdefault("OS_DEBUG", "1")
