"""The interop cases, one file a direction; each case's first line says what would break for a user."""
