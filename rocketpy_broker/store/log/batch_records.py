"""The records of a batch: a pure function of the batch's body and of the fields that its messages share."""

from __future__ import annotations

from itertools import accumulate

from rocketpy.errors import MessageInvalid
from rocketpy.native import has_native_form
from rocketpy.protocol.message.batch import decode_batch
from rocketpy.protocol.message.properties import MAX_PROPERTIES_BYTES
from rocketpy.protocol.message.record import encode_record, record_size
from rocketpy_broker.store.log.messages import NUL_IN_PROPERTIES, too_large


@has_native_form
def batch_records(
    data: bytes,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    position: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    size_max: int,
) -> tuple[bytes, list[int]]:
    """Return the records of a batch, and the physical offset of each.

    data: body of the batch. queue_offset, position: queue offset and physical offset of the first record.
    size_max: maximum size of all records. Raises MessageTooLarge, MessageInvalid for a NUL in properties,
    RemoteProtocolError for a malformed body, and the errors of `encode_record`.
    """
    batch = decode_batch(data)
    fixed = record_size(0, len(topic), 0, sys_flag)
    sizes = [fixed + len(body) + len(text) for _, body, text in batch]
    properties_max = max([len(text) for _, _, text in batch], default=0)
    if sum(sizes) > size_max or properties_max > MAX_PROPERTIES_BYTES:
        raise too_large(sum(sizes), size_max, properties_max)
    positions = list(accumulate(sizes, initial=position))
    records = []
    for number, (flag, body, properties) in enumerate(batch):
        if b"\0" in properties:
            raise MessageInvalid(NUL_IN_PROPERTIES)
        records.append(
            encode_record(
                topic, queue_id, flag, queue_offset + number, positions[number], sys_flag, born_timestamp,
                born_host, store_timestamp, store_host, reconsume_times, 0, body, properties,
            )
        )  # fmt: skip
    return b"".join(records), positions[:-1]
