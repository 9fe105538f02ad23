"""Checks the invariants I1 to I5 and I7 (docs/internals/dledger.md) of a master and its slaves."""

from __future__ import annotations

from rocketpy.protocol.message.record import decode
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.files.store_lock import StoreLock
from rocketpy_broker.store.log.log_scan import LogScan
from tests.sim.ha_world import World
from tests.unit.store.helpers import log_bytes


def check(world: World) -> None:
    """Raise AssertionError for a world at rest in which something was lost, invented or moved."""
    stores = [node.store for node in world.nodes if node.store is not None]
    assert len(stores) == len(world.nodes)
    logs = [log_bytes(store) for store in stores]
    assert logs[0] == logs[1] == logs[2], "replicas differ (I7)"
    store = stores[0]
    world.check_plain(store)
    for sent in world.acked if world.flushes or not world.power_fails else ():
        record = store.look_message(sent.position)
        assert record is not None, f"acknowledged message {sent.body[:8]!r} is lost (I1)"
        found = decode(record)
        place = (found.body, found.queue_id, found.queue_offset)
        assert place == (sent.body, sent.queue_id, sent.queue_offset), "another message is in its place (I3)"
    for node, one in zip(world.nodes, stores, strict=True):
        if node.backlog is not None:
            node.backlog.drain()
        check_queues(one, world.bodies)


def check_queues(store: MessageStore, bodies: set[bytes]) -> None:
    """Every queue is dense and points to the log's records, all of which were sent."""
    store.flush()
    store.dispatch()
    expected: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for view in LogScan(store.commit_log.files, store.min_physical_offset):
        record = store.look_message(view.physical_offset)
        assert record is not None
        assert decode(record).body in bodies, "a message that nobody sent (I2)"
        records = expected.setdefault((view.topic, view.queue_id), [])
        assert view.queue_offset == len(records), f"{view.topic}/{view.queue_id}: a hole (I4)"
        records.append((view.physical_offset, view.size))
    for key, units in expected.items():
        found = [(offset, size) for _, offset, size, _ in store.queues.queues[key].units()]
        assert found == units, f"{key}: the queue does not name what is in the log"
        assert store.table[key].next_offset == len(units), f"{key}: the next message gets a wrong number"
    for key, queue in store.queues.queues.items():
        assert queue.next_offset == len(expected.get(key, [])), f"{key}: units of messages that are gone"


def run_seed(seed: int, *, steps: int = 250) -> World:
    """Run a seed to its end and check it; raises AssertionError that names the seed."""
    try:
        world = World(seed, steps=steps)
        world.run()
        check(world)
    except Exception as error:
        raise AssertionError(f"seed {seed}: python -m tests.sim {seed}: {error}") from error
    finally:
        StoreLock._held.clear()  # the stores of a world are never closed
    return world
