"""Fuzzes a port that is served: mutated frames over real sockets.

What must hold: each request that can be read gets a response, each stream that cannot be read is closed,
responses can be decoded, and nothing is reported or logged as an internal error. (Requests that the broker
may keep waiting, long-polled pulls, may end with the connection.)
"""

from __future__ import annotations

import asyncio
import itertools
import re
import socket
import struct
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from time import perf_counter

from rocketpy.errors import RemoteProtocolError
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.remoting.command import Command, decode_command, encode_command
from rocketpy.protocol.remoting.frame import CODEC_JSON, CODEC_ROCKETMQ, Frame, FrameDecoder, encode_frame
from rocketpy_broker.security.allowed_callers import BROKER_CALLERS, NAMESRV_CALLERS
from tests.fuzz import corpus
from tests.fuzz.control import ControlClient
from tests.fuzz.engine import Failure, Result, memory_bound, replay_line
from tests.fuzz.mutation import Mutator, rng_for
from tests.fuzz.servers import ServerProcess, running_servers
from tests.fuzz.targets import odd_header

_SERVED: dict[str, Container[int]] = {
    "broker port": BROKER_CALLERS,
    "name server port": NAMESRV_CALLERS,
}
LIVE_TARGETS = tuple(_SERVED)

_CONNECTIONS = 8
"""How many work at once."""
_INPUTS_A_CONNECTION = 24
_RESPONSE_SECONDS = 60
_UNKNOWN_CODE = 9999
"""Every server responds to this with REQUEST_CODE_NOT_SUPPORTED: the mark after a connection's inputs."""
_MAY_WAIT = {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}
_INTERNAL_ERROR = "internal error"


# -- inputs -------------------------------------------------------------------------------------


def make_input(target: str, rng: Random) -> bytes:
    """A frame: with a mutated or an odd header, with a mutated body, or mutated as a whole."""
    frame, kind = rng.choice(_request_frames(target, rng.random() < 0.1)), rng.random()
    if kind < 0.2:
        tokens = corpus.JSON_TOKENS if frame.codec == CODEC_JSON else ()
        header = Mutator(corpus.headers(frame.codec), tokens).mutate(rng, frame.header)
        return encode_frame(frame.codec, header, frame.body)
    if kind < 0.6:
        return encode_frame(frame.codec, odd_header(frame, rng), frame.body)
    if kind < 0.9:
        bodies = [other.body for other in _request_frames(target, any_code=True)]
        return encode_frame(
            frame.codec, frame.header, Mutator(bodies, corpus.JSON_TOKENS).mutate(rng, frame.body)
        )
    return Mutator(corpus.streams()).make(rng)


@cache
def _request_frames(target: str, any_code: bool) -> list[Frame]:
    """Recorded requests; only such as this port serves, or all."""
    frames = FrameDecoder().feed(b"".join(corpus.request_frames()))
    return [frame for frame in frames if any_code or decode_command(frame).code in _SERVED[target]]


@dataclass(slots=True)
class _Sent:
    """One input on its way.

    opaque: of the response it must get; None when none is due. ends_stream: nothing can be read behind it,
    because it cannot be read, or is_unfinished and so waits for more.
    """

    index: int
    data: bytes
    opaque: int | None = None
    ends_stream: bool = False
    is_unfinished: bool = False


def _prepare(index: int, data: bytes, opaque: int) -> _Sent:
    """Predict the response of a server to an input, and number the request to find its response."""
    decoder = FrameDecoder()
    try:
        frames = decoder.feed(data)
        commands = [decode_command(frame) for frame in frames]
    except RemoteProtocolError:
        return _Sent(index, data, ends_stream=True)
    if decoder.buffered:
        return _Sent(index, data, ends_stream=True, is_unfinished=True)
    if len(commands) != 1 or commands[0].is_response or commands[0].is_oneway:
        return _Sent(index, data)
    numbered = _with_opaque(frames[0], opaque)
    return _Sent(index, data) if numbered is None else _Sent(index, numbered, opaque)


def _with_opaque(frame: Frame, opaque: int) -> bytes | None:
    """The frame with another opaque and no other change; None where that is impossible."""
    if frame.codec == CODEC_JSON:
        header = re.sub(rb'"opaque":-?\d+', b'"opaque":%d' % opaque, frame.header)
    elif frame.codec == CODEC_ROCKETMQ:
        header = frame.header[:5] + struct.pack(">i", opaque) + frame.header[9:]
    else:
        return None
    changed = Frame(frame.codec, header, frame.body)
    return encode_frame(*changed) if decode_command(changed).opaque == opaque else None


# -- one connection -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Connection:
    """One connection: inputs out, responses in."""

    address: str
    waiting: dict[int, _Sent] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    decoder: FrameDecoder = field(default_factory=FrameDecoder)
    phase: str = "connecting"

    async def run(self, inputs: list[_Sent], mark: int) -> None:
        """Send the inputs, and the mark unless the last of them ends the stream; read all responses."""
        host, _, port = self.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        self.waiting = {sent.opaque: sent for sent in inputs if sent.opaque is not None}
        self.phase = "waiting for responses"
        _reset_when_closed(writer)
        writer.write(b"".join(sent.data for sent in inputs))
        ends = inputs[-1].ends_stream
        if ends:
            self.phase = "waiting for the connection to be closed"
            if inputs[-1].is_unfinished:
                writer.write_eof()
        else:
            writer.write(encode_command(Command(_UNKNOWN_CODE, opaque=mark)))
        try:
            await self._take_responses(reader, None if ends else mark)
        except ConnectionError:
            self.outcomes["closed"] += 1
            assert ends, "the connection was reset behind frames that can be read"
        finally:
            writer.transport.abort()
        self.outcomes["no response due"] += sum(
            sent.opaque is None and not sent.ends_stream for sent in inputs
        )

    async def _take_responses(self, reader: asyncio.StreamReader, mark: int | None) -> None:
        marked = mark is None
        while not (mark is not None and marked and all(_may_wait(sent) for sent in self.waiting.values())):
            data = await reader.read(1 << 18)
            if not data:
                assert mark is None, "the connection was closed behind frames that can be read"
                self.outcomes["closed"] += 1
                return
            for response in map(decode_command, self.decoder.feed(data)):
                marked = marked or response.opaque == mark
                self._count(response, mark)
        self.outcomes["left waiting"] += len(self.waiting)

    def _count(self, response: Command, mark: int | None) -> None:
        assert not (response.remark or "").startswith(_INTERNAL_ERROR), f"responded {response.remark!r}"
        if not response.is_response:
            self.outcomes["asked back"] += 1
        elif response.opaque != mark:
            self.waiting.pop(response.opaque, None)
            self.outcomes[_name(response.code)] += 1


def _reset_when_closed(writer: asyncio.StreamWriter) -> None:
    """Many thousand connections would otherwise keep their ports for a minute each."""
    opened = writer.get_extra_info("socket")
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _may_wait(sent: _Sent) -> bool:
    return decode_command(FrameDecoder().feed(sent.data)[0]).code in _MAY_WAIT


def _name(code: int) -> str:
    return ResponseCode(code).name if code in set(ResponseCode) else f"code {code}"


# -- the run ------------------------------------------------------------------------------------


async def fuzz_port(target: str, folder: Path, *, inputs: int, seed: int, first: int = 0) -> Result:
    """Start servers and an ordinary client of theirs, and fuzz one of the ports. Raises Failure."""
    make_input(target, Random(seed))  # reads the recordings, which would hold up the client's event loop
    async with running_servers(folder) as server:
        address = server.broker if target == "broker port" else server.namesrv
        try:
            async with ControlClient(server.namesrv):
                return await run_live(target, address, server, inputs=inputs, seed=seed, first=first)
        except Failure as failure:
            raise Failure(f"{failure}\n{server.stalls()}") from failure


async def run_live(
    target: str, address: str, server: ServerProcess, *, inputs: int, seed: int, first: int = 0
) -> Result:
    """Send `inputs` inputs to a port. Raises Failure for a violated promise, or too much memory."""
    result, started = Result(target), perf_counter()
    before, _ = server.memory()
    groups = _groups(target, seed, first, first + inputs, result)
    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_CONNECTIONS):
                tasks.create_task(_work(target, address, seed, groups, result))
    except* Failure as failures:
        raise failures.exceptions[0] from None
    result.seconds = perf_counter() - started
    await _check_server(target, server, before, result)
    return result


def _groups(target: str, seed: int, index: int, end: int, result: Result) -> Iterator[list[_Sent]]:
    """The frames of each connection: many readable inputs, or one unreadable one.

    (A server that meets bytes it cannot read drops the connection and the responses that were still to come.)
    """
    group: list[_Sent] = []
    for opaque in itertools.count(1):
        if index == end:
            break
        sent = _prepare(index, make_input(target, rng_for(seed, target, index)), opaque)
        index += 1
        result.inputs += 1
        result.bytes += len(sent.data)
        if sent.ends_stream:
            yield _measured([sent], result)
            continue
        group.append(sent)
        if len(group) == _INPUTS_A_CONNECTION:
            yield _measured(group, result)
            group = []
    if group:
        yield _measured(group, result)


def _measured(group: list[_Sent], result: Result) -> list[_Sent]:
    result.largest_bytes = max(result.largest_bytes, sum(len(sent.data) for sent in group))
    return group


async def _work(target: str, address: str, seed: int, groups: Iterator[list[_Sent]], result: Result) -> None:
    """One of the connections at a time, until no group is left."""
    for group in groups:
        connection = _Connection(address)
        try:
            async with asyncio.timeout(_RESPONSE_SECONDS):
                await connection.run(group, mark=group[-1].index + (1 << 30))
        except (AssertionError, RemoteProtocolError, TimeoutError, OSError) as error:
            raise Failure(_description(target, seed, group, connection, error)) from error
        result.outcomes += connection.outcomes


def _description(
    target: str, seed: int, group: list[_Sent], connection: _Connection, error: Exception
) -> str:
    unanswered = [sent for sent in connection.waiting.values() if not _may_wait(sent)] or group
    one = unanswered[0]
    whole = f"--first {group[0].index} --inputs {group[-1].index - group[0].index + 1}"
    waiting = sorted(sent.index for sent in connection.waiting.values())
    return (
        f"{target}: {type(error).__name__} while {connection.phase}: {error}\n"
        f"{replay_line(target, seed, one.index, one.data)}\n"
        f"the whole connection: {whole}; unanswered: {waiting}"
    )


async def _check_server(target: str, server: ServerProcess, before: int, result: Result) -> None:
    errors = await server.unexpected_errors()
    if errors:
        raise Failure(f"{target}: the server logged {len(errors)} errors, the first:\n{errors[0]}")
    _, result.peak_bytes = server.memory()
    result.peak_growth_bytes = result.peak_bytes - before
    in_flight = _CONNECTIONS * result.largest_bytes
    if result.peak_growth_bytes > memory_bound(in_flight):
        raise Failure(
            f"{target}: the server's memory grew by {result.peak_growth_bytes:,} bytes; "
            f"{memory_bound(in_flight):,} are allowed for {in_flight:,} bytes of input at once"
        )
