# SPDX-License-Identifier: Apache-2.0
"""The tests. With any runner (stestr, unittest), the log of a test is shown only if the test fails."""

import gc
import os

# oslotest reads these. Without them, the logs of all libraries go to the terminal, from DEBUG on.
os.environ.setdefault("OS_LOG_CAPTURE", "1")
os.environ.setdefault("OS_DEBUG", "1")

# Rarer collections of young objects, which take a tenth of the tests' processor time with Python's thresholds. Old
# objects are collected as often as by default: each engine that is garbage still has a thread.
gc.set_threshold(7_000, 10, 1)
# A forked child does not visit what it inherits: the kernel would copy the pages of all these objects.
os.register_at_fork(after_in_child=gc.freeze)
