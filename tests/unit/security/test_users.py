"""Users and policies: what they permit, their order of precedence, their errors, and their file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from rocketpy_broker.config.model import UsersConfig
from rocketpy_broker.security.accounts import AccessList, read_access_file
from rocketpy_broker.security.rights import RequiredRight, Right, Subject, may_read_from
from rocketpy_broker.security.user_file import UserStore
from rocketpy_broker.security.users import AuthFile, User, UserList
from rocketpy_broker.services.pop.formats import REVIVE_GROUP, SEEN_GROUP

HOST = "10.0.0.7"
OWN_GROUPS = ("CID_RMQ_SYS_TRANS", REVIVE_GROUP, SEEN_GROUP)
BOSS = UserInfo(username="boss", password="boss-secret", user_type="Super")


def entry(rule: str) -> PolicyEntryInfo:
    """An entry from a text: ``Topic:A Pub,Sub Allow 10.0.0.0/8``."""
    resource, actions, decision, *networks = rule.split()
    return PolicyEntryInfo(
        resource=resource, actions=actions.split(","), decision=decision, source_ips=networks or None
    )


def user(*custom: str, default: tuple[str, ...] = (), cluster: str = "C") -> User:
    """A user of the type Normal with these entries, at a broker of this cluster, or without one."""
    policies = [
        PolicyInfo(policy_type=kind, entries=[entry(rule) for rule in rules])
        for kind, rules in (("Custom", custom), ("Default", default))
        if rules
    ]
    contents = AuthFile(
        users=[UserInfo(username="app", password="app-secret")],
        acls=[AclInfo(subject="User:app", policies=policies)],
    )
    return UserList.of(contents, cluster=cluster, authorizes=True).accounts["app"]


@pytest.mark.parametrize(
    ("custom", "default", "allowed"),
    [
        (["Cluster:* Get Allow"], [], True),
        (["* Get Allow"], [], True),
        (["Cluster:C Get Allow"], [], False),
        (["Cluster:* Get Allow", "Cluster:C Get Deny"], [], False),
        (["* Get Allow", "Cluster:C* Get Deny"], [], False),
        (["Cluster:* Get Allow", "Cluster:C Get Deny 10.1.0.0/16"], [], True),
        (["Cluster:* Get Allow", "Cluster:C Update Deny"], [], True),
        ([], ["Cluster:* Get Allow", "Cluster:C Get Deny"], False),
        (["Cluster:* Get Allow"], ["Cluster:C Get Deny"], True),
    ],
)
def test_a_denial_for_a_cluster_applies_at_name_servers(
    custom: list[str], default: list[str], allowed: bool
) -> None:
    """Whoever must not administrate a cluster could change its name servers, which have no cluster's name."""
    who = user(*custom, default=tuple(default), cluster="")
    assert may(who, "cluster:", Right.GET) == allowed


def may(who: User, what: str, right: Right = Right.PUB, host: str = HOST) -> bool:
    """Whether a user has a right to ``topic:A``, ``group:g`` or ``cluster:``."""
    kind, _, name = what.partition(":")
    return who.refusal(RequiredRight(name, Subject(kind), Right.DENY, right), host) is None


@pytest.mark.parametrize(
    ("rules", "topic", "allowed"),
    [
        ([], "A", False),
        (["Topic:A Pub Allow"], "A", True),
        (["Topic:A Sub Allow"], "A", False),
        (["Topic:A All Allow"], "A", True),
        (["Topic:A Sub,Pub Allow"], "A", True),
        (["Group:A Pub Allow"], "A", False),
        (["Topic:Or* Pub Allow"], "Orders", True),
        (["Topic:Or* Pub Allow"], "Other", False),
        (["Topic:* Pub Allow"], "Orders", True),
        (["* Pub Allow"], "Orders", True),
        # a name before a prefix, a longer prefix before a shorter one, a prefix before every name
        (["Topic:Or* Pub Deny", "Topic:Orders Pub Allow"], "Orders", True),
        (["Topic:Or* Pub Allow", "Topic:Orders Pub Deny"], "Orders", False),
        (["Topic:O* Pub Deny", "Topic:Ord* Pub Allow"], "Orders", True),
        (["Topic:Ord* Pub Deny", "Topic:O* Pub Allow"], "Orders", False),
        (["Topic:* Pub Allow", "Topic:O* Pub Deny"], "Orders", False),
        (["* Pub Deny", "Topic:* Pub Allow"], "Orders", True),
        (["* Pub Allow", "Topic:* Pub Deny"], "Orders", False),
        # entries about other actions do not count
        (["Topic:Orders Sub Deny", "Topic:* Pub Allow"], "Orders", True),
    ],
)
def test_the_most_specific_entry_decides(rules: list[str], topic: str, allowed: bool) -> None:
    """A user could write to a topic that is denied, or not to one that is allowed."""
    for order in (rules, rules[::-1]):
        assert may(user(*order), f"topic:{topic}") is allowed


def test_a_default_policy_applies_where_no_custom_one_does() -> None:
    """A name in the default policy would take precedence over a custom pattern."""
    who = user("Topic:Or* Pub Deny", default=("Topic:Orders Pub Allow", "Topic:News Pub Allow"))
    assert not may(who, "topic:Orders")
    assert may(who, "topic:News")


@pytest.mark.parametrize(
    ("network", "host", "allowed"),
    [
        ("10.0.0.7", "10.0.0.7", True),
        ("10.0.0.7", "10.0.0.8", False),
        ("10.0.0.0/8", "10.9.9.9", True),
        ("10.0.0.0/8", "[::ffff:10.9.9.9]", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("2001:db8::/32", "[2001:db8::7]", True),
        ("2001:db8::/32", "10.0.0.7", False),
        ("::ffff:10.0.0.0/104", "10.9.9.9", True),
        ("::ffff:10.0.0.0/104", "[::ffff:11.0.0.1]", False),
        ("::/0", "[2001:db8::7]", True),
        ("10.0.0.0/8", "no-address", False),
    ],
)
def test_an_entry_may_be_for_some_addresses(network: str, host: str, allowed: bool) -> None:
    """A user could act from an address that is not allowed."""
    assert may(user(f"Topic:A Pub Allow {network}"), "topic:A", host=host) is allowed


def test_other_kinds_of_resources_and_rights() -> None:
    """A member of a group, or an operator of a cluster, would be rejected."""
    who = user("Group:%RETRY%g Sub Allow", "Cluster:C Update Allow", "Topic:A Get Allow")
    assert may(who, "group:g", Right.SUB)
    assert may(who, "cluster:", Right.UPDATE)
    assert not may(who, "cluster:", Right.GET)
    assert not may(user("Cluster:Another Update Allow"), "cluster:", Right.UPDATE)
    assert may(who, "topic:A", Right.SUB | Right.GET)
    assert may(who, "topic:A", Right.DENY)  # a request that needs nothing of users


def test_patterns_do_not_cover_topics_of_the_broker() -> None:
    """A user could read half messages, timers and the messages of everybody's dead letters."""
    everything = user("* All Allow")
    for name in ("RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "C_REPLY_TOPIC"):
        assert not may(everything, f"topic:{name}", Right.SUB)
    for name in OWN_GROUPS:
        assert not may(everything, f"group:{name}", Right.SUB)
        assert not may(everything, f"group:{name}", Right.DELETE)
    assert may(everything, "topic:RMQ_SYS_TRACE_TOPIC")
    assert not may(everything, "topic:RMQ_SYS_TRACE_TOPIC", Right.SUB)
    assert may(user("Topic:SCHEDULE_TOPIC_XXXX Sub Allow"), "topic:SCHEDULE_TOPIC_XXXX", Right.SUB)
    assert may(everything, "topic:%DLQ%g", Right.SUB)
    assert not may(user("Topic:* Sub Allow", "Group:mine Sub Allow"), "topic:%DLQ%theirs", Right.SUB)


def test_a_replier_may_read_a_topic_of_the_requester() -> None:
    """A user could reply to requests that it must not read."""
    replier = user("Topic:Orders* Sub Allow")
    assert may_read_from(replier, HOST, user("Topic:Ord* Pub Allow"), HOST)
    assert may_read_from(replier, HOST, None, "")
    assert not may_read_from(replier, HOST, user("Topic:News Pub Allow"), HOST)
    assert not may_read_from(user("Topic:A Pub Allow"), HOST, None, "")


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        ("Topic:A* Publish Allow", "action 'Publish' is unknown; expected one of All"),
        ("Topic:A Any Allow", "action 'Any' is unknown"),
        ("Topic:A Pub Maybe", "decision 'Maybe' is unknown"),
        ("Topic:A*B Pub Allow", r"invalid resource 'Topic:A\*B'"),
        ("Topic: Pub Allow", "invalid resource"),
        ("Queue:A Pub Allow", "invalid resource"),
        ("Topic:A Pub Allow 10.0.0.300", "'10.0.0.300' is neither an address nor a network"),
    ],
)
def test_an_invalid_entry_is_rejected(tmp_path: Path, rule: str, error: str) -> None:
    """An entry that means to deny something would be ignored."""
    store = opened(tmp_path)
    store.create_user(UserInfo(username="app", password="app-secret"))
    before = store.path.read_text()
    with pytest.raises(ConfigInvalid, match=error):
        store.put_acl("User:app", [PolicyInfo(entries=[entry(rule)])])
    assert store.path.read_text() == before
    policy = {"policyType": "Custom", "entries": [json.loads(entry(rule).encode())]}
    store.path.write_text(
        json.dumps(
            {
                "users": [{"username": "u", "password": "p"}],
                "acls": [{"subject": "User:u", "policies": [policy]}],
            }
        )
    )
    with pytest.raises(ConfigInvalid, match=r"auth\.json: user 'u': "):
        store.load()


# -- the file ---------------------------------------------------------------------------------


def opened(root: Path, **settings: object) -> UserStore:
    """The users of a file that has the user `boss` only."""
    config = UsersConfig(file=root / "config" / "auth.json", initial_users=(BOSS,), **settings)  # type: ignore[arg-type]
    store = UserStore(config, "C")
    store.load()
    return store


def test_users_and_policies_survive_a_restart(tmp_path: Path) -> None:
    """A restart would open the server or lock everybody out."""
    store = opened(tmp_path)
    assert store.path.stat().st_mode & 0o777 == 0o600
    store.create_user(UserInfo(username="app", password="app-secret"))
    store.put_acl("User:app", [PolicyInfo(entries=[entry("topic:A pub allow")])])
    store.put_acl("user:app", [PolicyInfo(policy_type="default", entries=[entry("Topic:* Sub Deny")])])
    store.update_user(UserInfo(username="boss", password="new-secret", user_status=None))
    again = opened(tmp_path)
    assert again.rules.accounts["boss"].secret_key == b"new-secret"  # not that of the configuration
    assert may(again.rules.accounts["app"], "topic:A")
    acl = again.acl("User:app")
    assert acl is not None
    assert [(policy.policy_type, policy.entries) for policy in acl.policies or []] == [
        ("Custom", [entry("Topic:A Pub Allow")]),
        ("Default", [entry("Topic:* Sub Deny")]),
    ]


def test_an_entry_replaces_the_one_of_its_resource(tmp_path: Path) -> None:
    """An entry that takes a right would be kept beside the one that gave it."""
    store = opened(tmp_path)
    store.create_user(UserInfo(username="app", password="app-secret"))
    for rule in ("Topic:A Pub Allow", "Topic:B Pub Allow", "Topic:A All Deny"):
        store.put_acl("User:app", [PolicyInfo(entries=[entry(rule)])])
    app = store.rules.accounts["app"]
    assert (may(app, "topic:A"), may(app, "topic:B")) == (False, True)
    store.delete_acl("User:app", None, "Topic:B")
    assert not may(store.rules.accounts["app"], "topic:B")
    assert len(store.acls()) == 1
    assert store.acls(resource="Topic:B") == []
    store.delete_acl("User:app", None, None)
    assert store.acl("User:app") is None
    with pytest.raises(ConfigInvalid, match="The acl is not exist"):
        store.delete_acl("User:app", None, None)


def test_a_deleted_user_takes_its_policies_with_it(tmp_path: Path) -> None:
    """A new user of the same name would have the rights of the old one."""
    store = opened(tmp_path)
    store.create_user(UserInfo(username="app", password="app-secret"))
    store.put_acl("User:app", [PolicyInfo(entries=[entry("Topic:A Pub Allow")])])
    store.delete_user("app")
    store.create_user(UserInfo(username="app", password="app-secret"))
    assert not may(store.rules.accounts["app"], "topic:A")


def test_the_last_super_user_is_kept(tmp_path: Path) -> None:
    """Nobody could manage users any more."""
    store = opened(tmp_path)
    changes: list[Callable[[], None]] = [
        lambda: store.delete_user("boss"),
        lambda: store.update_user(UserInfo(username="boss", user_status="disable")),
        lambda: store.update_user(UserInfo(username="boss", user_type="Normal")),
    ]
    for change in changes:
        with pytest.raises(ConfigInvalid, match="no user of the type Super is enabled"):
            change()
    assert store.rules.accounts["boss"].is_admin


def test_an_unreadable_file_fails_the_start(tmp_path: Path) -> None:
    """The server would start with the users of its configuration only, or open."""
    store = opened(tmp_path)
    for text in (
        "{",
        "1" * 5000,
        '{"users": [{"username": "\\ud800", "password": "p"}]}',
        '{"users": [{"username": "boss"}]}',
        '{"user": []}',
        "[]",
    ):
        store.path.write_text(text)
        with pytest.raises(ConfigInvalid, match=r"auth\.json: ") as caught:
            opened(tmp_path)
        assert "secret" not in str(caught.value)
        assert store.path.read_text() == text
    store.path.unlink()
    config = UsersConfig(file=store.path)
    with pytest.raises(ConfigInvalid, match="set initAuthenticationUser"):
        UserStore(config, "C").load()


DENIES = {"resource": "Topic:A", "actions": ["Pub"], "decision": "Deny"}
ALLOWS = {"resource": "Topic:*", "actions": ["Pub"], "decision": "Allow"}


def written(root: Path, *acls: dict[str, object]) -> UserStore:
    """The users of a file with `boss`, `app` and these policies, as a person may write it."""
    store = opened(root)
    users = [
        {"username": "boss", "password": "s", "userType": "super"},
        {"username": " app ", "password": "p"},
    ]
    store.path.write_text(json.dumps({"users": users, "acls": acls}))
    store.load()
    return store


def test_a_file_written_by_hand_is_read_as_requests_are(tmp_path: Path) -> None:
    """A denial with ``custom`` in lower case would have no effect, or a change would add a second entry."""
    store = written(
        tmp_path,
        {
            "subject": "user:app",
            "policies": [
                {"policyType": "default", "entries": [ALLOWS]},
                {"policyType": "custom", "entries": [DENIES | {"resource": "topic:A", "actions": ["pub"]}]},
            ],
        },
    )
    assert not may(store.rules.accounts["app"], "topic:A")
    assert may(store.rules.accounts["app"], "topic:B")
    store.put_acl("User:app", [PolicyInfo(entries=[entry("Topic:A Pub Allow")])])
    assert may(store.rules.accounts["app"], "topic:A")
    store.delete_user("app")
    store.create_user(UserInfo(username="app", password="p"))
    assert store.acl("User:app") is None


@pytest.mark.parametrize(
    ("acls", "error"),
    [
        (
            [{"subject": "User:app", "policies": [{"entries": [rule]}]} for rule in (DENIES, ALLOWS)],
            "the subject 'User:app' is there twice",
        ),
        (
            [
                {
                    "subject": "User:app",
                    "policies": [{"entries": [DENIES]}, {"entries": [DENIES | {"decision": "Allow"}]}],
                }
            ],
            "user 'app': the Custom resource 'Topic:A' is there twice",
        ),
        ([{"subject": "User:ap", "policies": []}], "policies of User:ap, but there is no such user"),
    ],
)
def test_a_file_with_policies_that_have_no_effect_is_rejected(
    tmp_path: Path, acls: list[dict[str, object]], error: str
) -> None:
    """Of a denial and a permission for the same, only one would count, without an error."""
    with pytest.raises(ConfigInvalid, match=error):
        written(tmp_path, *acls)


APP = {"username": "app", "password": "p"}
RULE = {"resource": "Topic:A", "actions": ["Pub"], "decision": "Allow"}


def with_rule(*, acl: object = None, policy: object = None, rule: object = None) -> dict[str, object]:
    """The contents of a file with one entry. The arguments are added to its parts."""
    policies = [{"entries": [RULE | (rule or {})]} | (policy or {})]  # type: ignore[operator]
    return {"users": [APP], "acls": [{"subject": "User:app", "policies": policies} | (acl or {})]}  # type: ignore[operator]


@pytest.mark.parametrize(
    ("contents", "error"),
    [
        ({"users": [APP | {"userstatus": "disable"}]}, "user 'app': unknown setting userstatus"),
        (with_rule(rule={"sourceIp": ["10.0.0.1"]}), "subject 'User:app': unknown setting sourceIp"),
        (with_rule(policy={"policytype": "Default"}), "subject 'User:app': unknown setting policytype"),
        (with_rule(acl={"policys": []}), "subject 'User:app': unknown setting policys"),
        ({"users": [APP], "acl": []}, "unknown setting acl"),
        (with_rule(policy={"policyType": "Defualt"}), "policyType 'Defualt' is unknown"),
        ({"users": [APP | {"password:s3cret": ""}]}, "user 'app': unknown setting password$"),
    ],
)
def test_a_misspelt_key_of_the_file_is_rejected(
    tmp_path: Path, contents: dict[str, object], error: str
) -> None:
    """A user who is meant to be disabled could sign in, or a right would apply from every address."""
    store = opened(tmp_path)
    store.path.write_text(json.dumps(contents))
    with pytest.raises(ConfigInvalid, match=error):
        store.load()
    assert "app" not in store.rules.accounts


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"users": [], "users": []}', "users"),
        ('{"users": [{"username": "app", "userStatus": "disable", "userStatus": "enable"}]}', "userStatus"),
        ('{"acls": [{"policies": [{"entries": [{"decision": "Deny", "decision": "Allow"}]}]}]}', "decision"),
    ],
)
def test_a_key_that_is_twice_in_the_file_is_rejected(tmp_path: Path, text: str, key: str) -> None:
    """Only the second would count: a user who is disabled could sign in."""
    store = opened(tmp_path)
    store.path.write_text(text)
    with pytest.raises(ConfigInvalid, match=f"the setting {key} is there twice; remove one"):
        store.load()


def test_a_misspelt_kind_of_a_request_is_rejected(tmp_path: Path) -> None:
    """The deletion of a policy would report success and keep the policy."""
    store = opened(tmp_path)
    store.create_user(UserInfo(username="app", password="app-secret"))
    store.put_acl("User:app", [PolicyInfo(entries=[entry("Topic:A Pub Allow")])])
    with pytest.raises(
        ConfigInvalid, match="policyType 'Customs' is unknown; expected one of Custom, Default"
    ):
        store.delete_acl("User:app", "Customs", "Topic:A")
    store.delete_acl("User:app", " custom ", "Topic:A")
    assert store.acl("User:app") is None


def test_changes_do_not_replace_a_file_that_a_person_has_spoilt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The second change after the mistake would write the old rules over the work of a person, silently."""
    store = opened(tmp_path)
    good = store.path.read_text()
    store.path.write_text(good.replace("userStatus", "userstatus"))
    for _ in range(2):
        with pytest.raises(ConfigInvalid, match="unknown setting userstatus"):
            store.before_change()
    assert "userstatus" in store.problem
    assert caplog.text.count("the previous rules remain in effect") == 1
    store.path.write_text(good)
    store.reload_changed()
    assert not store.problem


# -- accounts of ACL 1.0 ----------------------------------------------------------------------

PLAIN = """
globalWhiteRemoteAddresses: [10.10.103.*]
accounts:
- {accessKey: RocketMQ, secretKey: 12345678, whiteRemoteAddress: 192.168.0.*, defaultTopicPerm: DENY,
   defaultGroupPerm: SUB, topicPerms: [A=DENY, B=PUB|SUB, C=SUB], groupPerms: [groupA=DENY]}
- {accessKey: rocketmq2, secretKey: very-secret, admin: true}
- {accessKey: without, secretKey: any-secret}
"""


def test_accounts_are_copied_as_rocketmq_5_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An application would lose its rights with the change to ACL 2.0, or the way back would be lost."""
    plain = tmp_path / "plain_acl.yml"
    plain.write_text(PLAIN)
    store = opened(tmp_path, migrate_from=plain)
    assert plain.read_text() == PLAIN
    assert {user.username: user.user_type for user in store.users()} == {
        "boss": "Super", "RocketMQ": "Normal", "rocketmq2": "Super", "without": "Normal",
    }  # fmt: skip
    acl = store.acl("User:RocketMQ")
    assert acl is not None
    assert [(policy.policy_type, policy.entries) for policy in acl.policies or []] == [
        (
            "Custom",
            [
                entry("Topic:A All Deny"),
                entry("Topic:B Pub,Sub Allow"),
                entry("Topic:C Sub Allow"),
                entry("Group:groupA All Deny"),
            ],
        ),
        ("Default", [entry("Topic:* All Deny"), entry("Group:* Sub Allow")]),
    ]
    assert store.acl("User:without") is None
    assert "not copied: globalWhiteRemoteAddresses" in caplog.text
    assert "not copied: whiteRemoteAddress of RocketMQ" in caplog.text
    store.update_user(UserInfo(username="RocketMQ", password="changed"))
    assert opened(tmp_path, migrate_from=plain).rules.accounts["RocketMQ"].secret_key == b"changed"


LIMITED = """
accounts:
- {accessKey: limited, secretKey: 12345678, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB,
   topicPerms: [A=PUB, B=SUB, C=PUB|SUB, D=DENY, RMQ_SYS_TRACE_TOPIC=SUB], groupPerms: [g=PUB]}
- {accessKey: patterns, secretKey: 12345678, topicPerms: ['*=SUB', 'A*=PUB'], groupPerms: ['%RETRY%g=SUB']}
- {accessKey: limited-admin, secretKey: 12345678, admin: true, topicPerms: [A=PUB]}
"""


def test_copied_accounts_have_no_more_rights(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An account that may only write to a topic could also read it, since its default right would apply."""
    plain = tmp_path / "plain_acl.yml"
    plain.write_text(LIMITED)
    store = opened(tmp_path, migrate_from=plain)
    accounts = AccessList.of(read_access_file(LIMITED)).accounts
    for name in ("limited", "patterns"):
        for topic in ("A", "B", "C", "D", "AB", "other", "RMQ_SYS_TRACE_TOPIC"):
            for right in (Right.PUB, Right.SUB):
                wanted = RequiredRight(topic, Subject.TOPIC, right, right)
                allowed = [
                    rules[name].refusal(wanted, HOST) is None for rules in (accounts, store.rules.accounts)
                ]
                assert allowed[0] == allowed[1], (name, topic, right)
        for group in ("g", "other"):
            wanted = RequiredRight(group, Subject.GROUP, Right.SUB, Right.SUB)
            allowed = [
                rules[name].refusal(wanted, HOST) is None for rules in (accounts, store.rules.accounts)
            ]
            assert allowed[0] == allowed[1], (name, group)
    for text in (
        "patterns to *:",
        "patterns to A*:",
        "patterns to %RETRY%g:",
        "the rights of limited-admin:",
    ):
        assert text in caplog.text


def test_an_invalid_file_of_accounts_copies_nothing(tmp_path: Path) -> None:
    """Some applications would have rights and some not, without an error."""
    plain = tmp_path / "plain_acl.yml"
    plain.write_text(PLAIN.replace("A=DENY", "A=NONE"))
    with pytest.raises(ConfigInvalid, match=r"plain_acl\.yml: account 'RocketMQ': unknown right 'NONE'"):
        opened(tmp_path, migrate_from=plain)
    assert "RocketMQ" not in (tmp_path / "config" / "auth.json").read_text()
