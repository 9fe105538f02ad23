"""Builds wheel and sdist, checks their contents, and tests each extra with the wheel: `make package`."""
