# SPDX-License-Identifier: Apache-2.0
"""The tests. With any runner (stestr, unittest), the log of a test is shown only if the test fails."""

import os

# oslotest reads these. Without them, the logs of all libraries go to the terminal, from DEBUG on.
os.environ.setdefault("OS_LOG_CAPTURE", "1")
os.environ.setdefault("OS_DEBUG", "1")
