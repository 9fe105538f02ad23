"""Settings of the brokers that integration tests run."""

from typing import Final

SMALL: Final = {
    "mappedFileSizeCommitLog": "1048576",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    # A busy machine delays event loops and writes, for which a broker would reject sends.
    "waitTimeMillsInSendQueue": "60000",
    "osPageCacheBusyTimeOutMills": "60000",
}
"""Small files and long overload limits. Tests of overload set their own limits."""
