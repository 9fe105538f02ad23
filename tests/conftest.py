"""Settings shared by every test."""

from hypothesis import settings

# Two busy cores make single examples slow without anything being wrong, so no deadline.
settings.register_profile("rocketpy", deadline=None, print_blob=True)
settings.load_profile("rocketpy")
