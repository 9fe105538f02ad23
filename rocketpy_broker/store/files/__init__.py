"""Files and disks: access, locks, atomic replacement, checkpoint and state files."""
