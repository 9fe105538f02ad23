"""``python -m rocketpy_broker``: the command ``rocketpy-broker``, where its script is not on the path."""

import sys

from rocketpy_broker.cli import main

if __name__ == "__main__":
    sys.exit(main())
