"""docs/compatibility.md: tested features by version of RocketMQ, from the results of `make interop-all`.

The results of all runs are kept in build/, so that a long run can be split. The page counts only cases that
still exist, and a case that has not run does not count as passed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.interop.java_peer import DEFAULT_VERSION
from tests.interop.sides import NEWER_VERSIONS

Results = dict[str, str]
"""Outcome by case, as pytest names it."""

PAGE: Final = Path(__file__).parents[2] / "docs" / "compatibility.md"
NOT_RUN: Final = "not run"
_RESULTS: Final = Path(__file__).parents[2] / "build" / "interop.json"
_VERSIONS: Final = (DEFAULT_VERSION, *NEWER_VERSIONS)
_OURS: Final = re.compile(
    r"(?:our SDK|our consumers|Spark) -> java namesrv \+ java broker"
    r"(?: \(binary\))?(?: of (?P<version>[\d.]+))?"
)
_THEIRS: Final = re.compile(
    r"(?P<client>Java client|Java client's features|Java examples|Java lite pull consumer|clients with keys"
    r"|Go client)"
    r"(?: of (?P<version>[\d.]+))?(?: \(\w+\))? -> our (?:namesrv \+ our broker|servers)"
)
_VERSION_OF_CASE: Final = re.compile(r"\[(\d\.\d\.\d)\b")
_GO: Final = "Go"
_CLIENTS: Final = (*_VERSIONS, _GO)
_CLIENT_FEATURES: Final = {
    "test_java_clients": "Applications: sends, transactions, push, pull and look-ups",
    "test_java_features": "Each feature of the client, with timers and recall",
    "test_java_examples": "RocketMQ's examples",
    "test_java_deferred": "RocketMQ's examples: transactions, request-reply and delays",
    "test_java_push_consumers": "RocketMQ's examples: consumers that join groups",
    "test_java_lite_pull": "Lite pull consumer",
    "test_assigned_queues": "Push consumer whose queues the broker assigns",
    "test_first_messages": "Topics that an application creates at its start",
    "test_access_control": "Access control: clients with keys",
    "test_go_client": "rocketmq-client-go",
}
_FEATURES: Final = {
    "test_mqproducer": "Producer: each method and setting of Java's `MQProducer`",
    "test_mqconsumer": "Consumers: push, lite pull and pull",
    "test_our_consumers": "Consumers in one group with Java's",
    "test_our_sdk": "Sending and reading beside Java clients",
    "test_producer_features": "Transactions, delays, request-reply and ids, with Java on the other side",
    "test_undecodable": "Messages that cannot be decoded",
    "test_sdk_acl": "Access control: signed requests of each client",
    "test_users": "Access control: users and policies of ACL 2.0",
    "test_sdk_tls": "TLS, with certificates of servers and clients",
    "test_message_trace": "Message trace",
    "test_tracing": "OpenTelemetry",
    "test_spark": "Spark: source and sink, batch and streaming",
    "test_admin_topics_and_groups": "AdminClient: topics and groups",
    "test_admin_parts": "AdminClient: brokers, messages, dead letters, name servers, accounts",
    "test_command_line": "Command line: commands that read and change, and the doctor",
    "test_console": "Web console: each page and each change",
    "test_faults": "Faults of servers",
}
_LACKING: Final = dict.fromkeys(("4.6.0", "4.9.7"), frozenset({_FEATURES["test_users"]}))
"""Features that a version does not have."""
_HEAD: Final = """# Compatibility

Features that were tested with each version of RocketMQ. `make interop-all` writes this page from its results.
Each number counts the test cases that passed; an empty cell means that the version does not have the feature.
[Differences](differences.md) lists what rocketpy does differently.

## rocketpy's clients with RocketMQ's servers

"""
_TAIL: Final = """
- Some rows have more cases with 4.6.0: these run with headers in JSON and in binary.
- RocketMQ 5.3.3 and 5.5.0 have ACL 2.0, and ignore the setting `aclEnable` of ACL 1.0. Clients sign requests
  as before. Consumers need the actions Sub and Get on their topics. Accounts that a broker migrates from
  `plain_acl.yml` lack Get, until `mqadmin updateAcl` adds it.
- `rocketpy acl` is for accounts of ACL 1.0; `rocketpy user` and `rocketpy policy` are for users and policies
  of ACL 2.0. A broker with the other kind rejects these requests. `AdminClient.accounts` has both.
- Brokers from 4.9 on handle the sends of a connection on several threads: messages in flight together
  may change their order ([sending](guides/sending.md#many-in-flight)).
- A broker of 5.5.0 creates a deleted group again, with default settings, unless its offsets are deleted, too:
  `mqadmin deleteSubGroup -r true`.
- rocketpy uses the remoting protocol, which name servers and brokers of 5.x serve, and not the gRPC proxy.
"""

_CLIENTS_HEAD: Final = """
## Other clients with rocketpy's servers

RocketMQ's Java client of each version, and its Go client. An empty cell has no cases.

"""
_PAIRING_WORDS: Final = (
    '"our" means rocketpy\'s and "java" RocketMQ\'s. "SDK" means the clients, "namesrv" the name server.'
)


def add_results(results: Results) -> Results:
    """Add the results of a run to those of earlier ones; return them all."""
    kept: Results = json.loads(_RESULTS.read_text("utf-8")) if _RESULTS.exists() else {}
    kept.update(results)
    _RESULTS.parent.mkdir(exist_ok=True)
    _RESULTS.write_text(json.dumps(kept, indent=1), "utf-8")
    return kept


def page(cases: Mapping[str, str], results: Results) -> str:
    """Return the page of these results. cases: the direction of each case that exists."""
    ours: dict[str, dict[str, list[str]]] = {feature: {} for feature in _FEATURES.values()}
    theirs: dict[str, dict[str, list[str]]] = {feature: {} for feature in _CLIENT_FEATURES.values()}
    others: dict[str, list[str]] = {}
    for case, direction in cases.items():
        outcome = results.get(case, NOT_RUN)
        module = Path(case.partition("::")[0]).stem
        feature, match = _FEATURES.get(module), _OURS.fullmatch(direction)
        version = match["version"] or DEFAULT_VERSION if match is not None else None
        if feature is not None and version in _VERSIONS:
            ours[feature].setdefault(version, []).append(outcome)
        elif module in _CLIENT_FEATURES and (client := _client(case, direction)) in _CLIENTS:
            theirs[_CLIENT_FEATURES[module]].setdefault(client, []).append(outcome)
        else:
            others.setdefault(direction or "(other cases)", []).append(outcome)
    clients = _features(theirs, _CLIENTS, none=lambda _feature, _client: "")
    return "".join(
        [
            _HEAD,
            *_features(ours, _VERSIONS, none=_without_case),
            _TAIL,
            _CLIENTS_HEAD,
            *clients,
            *_directions(others),
        ]
    )


def _client(case: str, direction: str) -> str | None:
    """Return the column of a case with rocketpy's servers and another client; None for other cases."""
    match = _THEIRS.fullmatch(direction)
    if match is None or match["client"] == "Go client":
        return _GO if match is not None else None
    named = _VERSION_OF_CASE.search(case)
    return match["version"] or (named[1] if named is not None else DEFAULT_VERSION)


def _without_case(feature: str, version: str) -> str:
    return "" if feature in _LACKING.get(version, ()) else NOT_RUN


def _features(
    rows: dict[str, dict[str, list[str]]], columns: Sequence[str], *, none: Callable[[str, str], str]
) -> Iterator[str]:
    """Yield a table of passed cases. none: returns the text for a cell without a case."""
    yield f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}\n"
    for feature, cells in rows.items():
        texts = " | ".join(
            _cell(cells[column]) if column in cells else none(feature, column) for column in columns
        )
        yield f"| {feature} | {texts} |\n"


def _directions(others: dict[str, list[str]]) -> Iterator[str]:
    yield f"\n## All other pairings\n\n{_PAIRING_WORDS}\n\n| Pairing | Cases |\n|---|---|\n"
    for direction, outcomes in sorted(others.items()):
        yield f"| {direction} | {_cell(outcomes)} |\n"


def _cell(outcomes: list[str]) -> str:
    passed = outcomes.count("passed")
    if set(outcomes) <= {NOT_RUN}:
        return NOT_RUN
    return str(passed) if passed == len(outcomes) else f"{passed} of {len(outcomes)}"
