"""Builds wheel and sdist, checks what is in them, and runs each extra from the wheel: `make package`."""
