"""Loads recordings of the real RocketMQ 4.6.0 (tests/golden; its README says how they were made)."""

import gzip
import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

from rocketpy.protocol.remoting.command import Command, decode_command
from rocketpy.protocol.remoting.frame import FrameDecoder

GOLDEN = Path(__file__).parent / "golden"
_STORE_FOLDERS = ("store", "ha", "dledger")

Json = dict[str, Any]


class RecordedFrame(NamedTuple):
    """One frame of a recording.

    info: the fields that the recorder decoded: `kind`, `code`, `serializeType`, `extFields`, `bodyText`, ….
    data: the frame with its four-byte length prefix.
    """

    info: Json
    data: bytes


class HaStream(NamedTuple):
    """Both directions of one master-slave connection, and their frames in order of time."""

    frames: list[Json]
    master_to_slave: bytes
    slave_to_master: bytes


def scenarios(folder: str = "remoting") -> list[str]:
    """Names of the recordings in a folder (remoting, ha, dledger), as `frames` takes them."""
    names = (path.stem for path in (GOLDEN / folder).glob("*.bin"))
    return sorted(name for name in names if (GOLDEN / folder / f"{name}.json").exists())


@cache
def frames(scenario: str, folder: str = "remoting") -> list[RecordedFrame]:
    """Every frame of a recording in order of time: `frames("boot")`, `frames("raft-frames", "dledger")`."""
    data = (GOLDEN / folder / f"{scenario}.bin").read_bytes()
    infos = _read_json(GOLDEN / folder / f"{scenario}.json")
    return [RecordedFrame(info, data[info["offset"] : info["offset"] + info["length"]]) for info in infos]


def requests(scenario: str, code: int) -> list[Command]:
    """The requests of a recording that have this code, decoded by rocketpy, in order of time."""
    found = (
        frame.data
        for frame in frames(scenario)
        if frame.info["code"] == code and frame.info["kind"] != "response"
    )
    return [decode_command(FrameDecoder().feed(data)[0]) for data in found]


@cache
def essential() -> list[Json]:
    """One request and its response for each request code, codec and response code.

    Keys: name, code, kind, request, requestHex; response and responseHex if RocketMQ sent a response.
    """
    return cast(list[Json], _read_json(GOLDEN / "remoting" / "essential.json"))


@cache
def catalog() -> list[Json]:
    """Every recorded request by code, with the place (scenario, n) of its response."""
    return cast(list[Json], _read_json(GOLDEN / "remoting" / "catalog.json"))


@cache
def newer_request_codes() -> dict[str, int]:
    """The constants of RequestCode of RocketMQ 5.5.0, by name."""
    return cast(dict[str, int], _read_json(GOLDEN / "clients" / "request-codes-5.5.0.json"))


@cache
def vectors(key: str) -> list[Json]:
    """Results of pure functions of the 4.6.0 jars, such as `vectors("hashCodes")`."""
    return cast(list[Json], _read_json(GOLDEN / "vectors" / "encode-vectors.json")[key])


def store_names(folder: str = "store") -> list[str]:
    """Names of the store directories of a folder (store, ha, dledger)."""
    return sorted(path.name.removesuffix(".tar.gz") for path in (GOLDEN / folder).glob("*.tar.gz"))


def extract_store(name: str, target: Path) -> Path:
    """Unpack a recorded store directory into `target`, with every file at its full size.

    Returns `target`, which then holds `commitlog/`, `consumequeue/`, `config/`, ….
    """
    with tarfile.open(_store_file(name, ".tar.gz")) as archive:
        for member in archive:
            path = target / member.name.removeprefix("store").lstrip("/")
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif (content := archive.extractfile(member)) is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
    _restore_cut_zeros(name, target)
    return target


def _restore_cut_zeros(name: str, target: Path) -> None:
    """Extend large files of dledger/, packed without trailing zeros, to their sizes in `.sizes.json`."""
    path = _store_file(name, ".sizes.json", must_exist=False)
    if not path.exists():
        return
    for file, size in _read_json(path).items():
        if size["fullSize"] != size["storedSize"]:
            with (target / file.removeprefix("store/")).open("r+b") as stored:
                stored.truncate(size["fullSize"])


@cache
def parsed(name: str) -> Json:
    """A recorded store, decoded: `commitlog`, `consumequeue`, `index`, `config`, `checkpoint`, ….

    An independent decoder wrote it, so tests can compare rocketpy's decoders with it.
    """
    return cast(Json, _read_json(_store_file(name, ".parsed.json.gz")))


@cache
def manifest(name: str) -> list[Json]:
    """The messages sent into a recorded store, in order: topic, bodyHex, properties, queueOffset, …."""
    return cast(list[Json], _read_json(GOLDEN / "store" / f"{name}.manifest.json"))


@cache
def ha_stream(name: str) -> HaStream:
    """A recorded master-slave connection, such as `ha_stream("ha1-conn1")`."""
    folder = GOLDEN / "ha"
    return HaStream(
        _read_json(folder / f"{name}.json"),
        (folder / f"{name}.master-to-slave.bin").read_bytes(),
        (folder / f"{name}.slave-to-master.bin").read_bytes(),
    )


def _store_file(name: str, ending: str, *, must_exist: bool = True) -> Path:
    candidates = [GOLDEN / folder / f"{name}{ending}" for folder in _STORE_FOLDERS]
    for path in candidates:
        if path.exists():
            return path
    if must_exist:
        raise FileNotFoundError(
            f"no recorded store {name!r}; there are {[*map(store_names, _STORE_FOLDERS)]}"
        )
    return candidates[0]


def _read_json(path: Path) -> Any:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
