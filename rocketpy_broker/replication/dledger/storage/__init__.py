"""The files of a DLedger log: entries, their index, recovery, and inspection of a stopped peer."""
