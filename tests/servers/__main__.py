import sys

from tests.servers.command import main

sys.exit(main())
