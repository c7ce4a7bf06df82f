# SPDX-License-Identifier: Apache-2.0
"""The tests. With any runner (stestr, unittest), the log of a test is shown only if the test fails."""

import gc
import os

# oslotest reads these. Without them, the logs of all libraries go to the terminal, from DEBUG on.
os.environ.setdefault("OS_LOG_CAPTURE", "1")
os.environ.setdefault("OS_DEBUG", "1")

# A process holds many objects that live as long as it: with Python's thresholds, collections take a tenth of the tests'
# processor time.
gc.set_threshold(10_000, 20, 20)
# A forked child does not visit what it inherits: the kernel would copy the pages of all these objects.
os.register_at_fork(after_in_child=gc.freeze)
