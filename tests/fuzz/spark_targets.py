"""Options of a Spark job; they come from notebooks, forms and other programs."""

from __future__ import annotations

from random import Random

from pyspark_rocketmq.options import SinkOptions, SourceOptions
from tests.fuzz.mutation import Mutator

_GIVEN = (
    b"nameServer=h:9876\ntopic=T\nbatchSize=10\ncompression=zlib\nformat=json\nretries=3\nrequireSendOk=false",
    b"nameServer=h:9876;i:9876\ntopic=A,B\nstartingOffsets=earliest\nsubExpression=a || b\npullBatchSize=32",
    b'nameServer=h:1\ntopic=T\nstartingOffsets={"T": {"b": {"0": 5}}}\nendingOffsets={"T": {"b": {"0": 9}}}',
    b"nameServer=h:1\ntopic=T\nnamespace=n\naccessKey=a\nsecretKey=s\ngroup=g\nstartingTimestamp=1700000000000",
    b'nameServer=h:1\nassign={"T": {"b": [0, 1]}}\nstartingOffsetsByTimestamp={"T": {"b": {"0": 5}}}',
    b"nameServer=h:1\ntopic=T\nstartingTimestamp=1\nstartingOffsetsByTimestampStrategy=error\nincludeHeaders=no",
    b"nameServer=h:1\nsubscribePattern=T.*\nminOffsetsPerTrigger=4\nmaxTriggerDelay=15m\ngroupIdPrefix=p",
    b"nameServer=h:1\ntopic=T\nminPartitions=4\nfailOnDataLoss=true\nmaxOffsetsPerTrigger=5\npushdown=true",
)
_TOKENS = (
    b"=",
    b"\n",
    b"-1",
    b"0",
    b"1e9",
    b"9" * 30,
    b"9" * 5000,
    b"true",
    b"latest",
    b"earliest",
    b"{",
    b"}",
    b"[",
    b'"',
    b":",
    b'{"T": {"b": {"0": 1e400}}}',
    b'"9999999999999999999999"',
    b"\xd9\xa1",
    b"\xc2\xb2",
    b"\x00",
    b"NaN",
    b"embedded:",
    b"tls=true",
    b"tls://",
    b"[::1]:",
    b"endingTimestamp=",
    b"requestTimeoutMs=",
    b"deliveryTimeoutMs=",
    b"%RETRY%",
)


def make_options(rng: Random) -> bytes:
    """Return mutated options, one on each line."""
    return Mutator(_GIVEN, _TOKENS).make(rng)


def check_options(data: bytes, rng: Random) -> None:
    """Accepted options make the settings of a client."""
    lines = (line.partition("=") for line in data.decode("utf-8", "replace").split("\n"))
    given = {name: value for name, found, value in lines if found}
    kind = rng.randrange(4)
    if kind == 0:
        sink = SinkOptions.read(given)
        sink.producer_config()
        sink.connection.client_config()
        return
    source = SourceOptions.read(given, streaming={1: True, 2: False}.get(kind))
    source.consumer_config()
    source.connection.client_config()
