"""The commit log: mapped files, appends, flushes and scans."""
