"""Readers of the broker that are fuzzed without a socket: accounts, addresses, filter expressions, pops."""

from __future__ import annotations

import contextlib
import json
from random import Random

from rocketpy.errors import RemoteProtocolError
from rocketpy_broker.filter.sql92 import compile_expression
from rocketpy_broker.security.accounts import AccessList, dump_access_file, read_access_file
from rocketpy_broker.security.addresses import AddressPattern
from rocketpy_broker.security.rights import RequiredRight, Right, Subject
from rocketpy_broker.security.users import UserList, read_auth_file
from rocketpy_broker.services.pop.formats import ACK_TAG, BATCH_ACK_TAG, Acknowledgement, CheckPoint
from tests.fuzz import corpus
from tests.fuzz.mutation import Mutator
from tests.golden_data import GOLDEN

# Short ones: PyYAML takes a millisecond a line.
_ACCOUNTS = (
    b"accounts: [{accessKey: RocketMQ, secretKey: 12345678, topicPerms: [a=PUB|SUB]}]",
    b"accounts:\n- accessKey: RocketMQ\n  secretKey: 12345678\n  admin: true\n",
    b"globalWhiteRemoteAddresses: [10.1.*.*]\ndataVersion: [{counter: 1}]",
)
_POLICY = b"""{"users":[{"username":"a","password":"b"}],"acls":[{"subject":"User:a","policies":[
{"policyType":"Custom","entries":[{"resource":"Topic:A*","actions":["Pub","All"],"decision":"Deny",
"sourceIps":["10.0.0.0/8","::1"]},{"resource":"*","actions":["Get"],"decision":"Allow"}]}]}]}"""
_USERS = (
    b'{"users":[{"username":"a","password":"b","userType":"Super","userStatus":"enable"}]}',
    _POLICY,
)
_YAML = (
    b"!!set ",
    b"!!binary ",
    b"&a ",
    b"*a",
    b"2001-99-99",
    b"{",
    b"[",
    b"- ",
    b"\n  ",
    b"? ",
    b".nan",
    b"~",
)
_ADDRESSES = (
    b"10.1.2.3",
    b"10.1.{2,3}",
    b"192.168.0-20.*",
    b"2001:db8::1",
    b"2::ac5:78:1-200:*",
    b"10.0.0.1,::1",
)
_HOSTS = ("127.0.0.1", "10.1.2.3", "::1", "2001:db8::1", "fe80::1%eth0", "memory", "")
_EXPRESSIONS = (
    b"a > 5 AND (b = 'x' OR c IS NOT NULL)", b"a BETWEEN 1 AND 2.5e3", b"NOT a IN ('x', 'y') AND TRUE",
    b"'it''s' = a OR -1 < b", b"a NOT BETWEEN 0 AND 9 OR b <> FALSE",
)  # fmt: skip
_WORDS = (
    b" AND ",
    b" OR ",
    b" NOT ",
    b"(",
    b")",
    b" IN (",
    b" IS NULL",
    b"'",
    b"-",
    b"1e999",
    b"0x1F",
    b" = ",
)


def make_access_file(rng: Random) -> bytes:
    """Return a mutated plain_acl.yml."""
    return Mutator(_ACCOUNTS, _YAML).make(rng)


def check_access_file(data: bytes, _: Random) -> None:
    """Check that accounts which were read are the same after a dump."""
    written = read_access_file(data.decode("utf-8", "replace"))
    rules = AccessList.of(written)
    assert AccessList.of(read_access_file(dump_access_file(written))).accounts.keys() == rules.accounts.keys()


def make_auth_file(rng: Random) -> bytes:
    """Return a mutated auth.json."""
    return Mutator(_USERS, (b"*", b":", b"[", b"{", b"null", b'"Topic:', b'"All"', b'"10.0.0.0/8"')).make(rng)


def check_auth_file(data: bytes, _: Random) -> None:
    """An accepted user can be asked for any right."""
    contents = read_auth_file(data.decode("utf-8", "replace"))
    users = UserList.of(contents, cluster="C", authorizes=True)
    for user in users.accounts.values():
        for kind in (Subject.TOPIC, Subject.GROUP, Subject.CLUSTER):
            for host in _HOSTS:
                user.refusal(RequiredRight("A", kind, Right.PUB, Right.PUB | Right.GET), host)


def make_address(rng: Random) -> bytes:
    """Return a mutated address pattern."""
    return Mutator(_ADDRESSES, (b"*", b"-", b":", b".", b"{", b"}", b",", b"255", b"ffff")).make(rng)


def check_address(data: bytes, _: Random) -> None:
    """An accepted pattern can be matched with any host."""
    pattern = AddressPattern(data.decode("utf-8", "replace"))
    for host in _HOSTS:
        pattern.matches(host)


def make_expression(rng: Random) -> bytes:
    """Return a mutated SQL92 filter."""
    return Mutator(_EXPRESSIONS, _WORDS).make(rng)


def check_expression(data: bytes, _: Random) -> None:
    """An accepted expression can be matched with any message."""
    expression = compile_expression(data.decode("utf-8", "replace"))
    for properties in ({}, {"a": "5", "b": "x", "c": ""}, {"a": "true", "b": "1e400"}, {"a": "\ud800"}):
        expression.matches(properties)


def make_pop_record(rng: Random) -> bytes:
    """The body of a record of the revive topic."""
    bodies = [text.encode() for text in json.loads((GOLDEN / "pop" / "bodies.json").read_text()).values()]
    return Mutator(bodies, corpus.JSON_TOKENS).make(rng)


def check_pop_record(data: bytes, _: Random) -> None:
    """What was read is written as a record that means the same."""
    for tag in (ACK_TAG, BATCH_ACK_TAG):
        with contextlib.suppress(RemoteProtocolError):
            ack = Acknowledgement.decode(tag, data)
            if ack.offsets:
                assert Acknowledgement.decode(*ack.encode()) == ack, "an acknowledgement changed"
    point = CheckPoint.decode(data, 0)
    again = CheckPoint.decode(point.encode(), 0)
    assert (again.key, again.encode()) == (point.key, point.encode()), "a check point changed"
