"""``python -m rocketpy_broker.cli``: the same as ``python -m rocketpy_broker``."""

import sys

from rocketpy_broker.cli import main

sys.exit(main())
