"""``python -m rocketpy``: the command ``rocketpy``, where its script is not on the path."""

import sys

from rocketpy.cli import main

if __name__ == "__main__":
    sys.exit(main())
