"""``python -m rocketpy`` runs the command ``rocketpy``, also when its script is not on the PATH."""

import sys

from rocketpy.cli import main

if __name__ == "__main__":
    sys.exit(main())
