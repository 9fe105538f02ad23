"""Reads the time in a client unique id."""

from __future__ import annotations

from rocketpy.protocol.message.message_id import check_unique_id, month_start_ms


def unique_id_time_ms(unique_id: str, now_ms: int) -> int:
    """Return when an id was created in this time zone, in ms, less than a month before `now_ms`.

    Raises RemoteProtocolError for a malformed id. RocketMQ's getNearlyTimeFromID is a month early for an id
    that was created at `now_ms` (QUIRKS 26).
    """
    check_unique_id(unique_id)
    since_start = int(unique_id[-12:-4], 16)
    made = month_start_ms(now_ms) + since_start
    return made if made <= now_ms else month_start_ms(now_ms, -1) + since_start
