"""`python -m rocketpy_broker.cli`, which is `python -m rocketpy_broker`."""

import sys

from rocketpy_broker.cli import main

sys.exit(main())
