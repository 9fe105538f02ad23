"""plain_acl.yml: its meaning, its errors, and no secrets in texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.bodies import PlainAccessConfig
from rocketpy_broker.security import access_file
from rocketpy_broker.security.access_file import AccessStore
from rocketpy_broker.security.accounts import (
    AccessFile,
    AccessList,
    Account,
    dump_access_file,
    read_access_file,
)
from rocketpy_broker.security.rights import Right, may_read_from
from rocketpy_broker.services.pop.formats import REVIVE_GROUP, SEEN_GROUP

BOTH = Right.PUB | Right.SUB
ACCOUNTS = """
globalWhiteRemoteAddresses:
- 10.10.103.*

accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC= SUB
  groupPerms:
  - groupA=DENY

- accessKey: rocketmq2
  secretKey: very-secret
  whiteRemoteAddress: 192.168.1.*
  admin: true
"""


def test_the_file_of_the_distribution_is_understood() -> None:
    """Operators would have to write the accounts of RocketMQ again."""
    rules = AccessList.of(read_access_file(ACCOUNTS))
    one, two = rules.accounts["RocketMQ"], rules.accounts["rocketmq2"]
    assert rules.is_on_allow_list("10.10.103.7")
    assert not rules.is_on_allow_list("10.10.104.7")
    assert one.secret_key == b"12345678"
    assert [one.right_to_topic(name) for name in ("topicA", "topicB", "topicC", "other")] == [
        Right.DENY, BOTH, Right.SUB, Right.DENY,
    ]  # fmt: skip
    assert [one.right_to_group(name) for name in ("groupA", "topicB")] == [Right.DENY, Right.SUB]
    assert (one.is_limited, two.is_limited) == (True, False)
    assert two.allow_list.matches("192.168.1.9")


def account(**settings: Any) -> Account:
    """The account with these settings of a file, and with all default rights."""
    rights = {"defaultTopicPerm": "PUB|SUB", "defaultGroupPerm": "SUB"}
    config = {"accessKey": "account", "secretKey": "12345678", **rights, **settings}
    return AccessList.of(msgspec.convert({"accounts": [config]}, AccessFile)).accounts["account"]


@pytest.mark.parametrize(
    ("topic", "right"),
    [
        ("Orders", BOTH), ("%RETRY%others", BOTH), ("%DLQ%mine", BOTH), ("%DLQ%others", Right.DENY),
        ("RMQ_SYS_TRACE_TOPIC", Right.PUB), ("RMQ_SYS_TRANS_HALF_TOPIC", Right.DENY),
        ("SCHEDULE_TOPIC_XXXX", Right.DENY), ("OFFSET_MOVED_EVENT", Right.DENY),
        ("DefaultCluster_REPLY_TOPIC", Right.DENY), ("TRANS_CHECK_MAX_TIME_TOPIC", Right.SUB),
    ],
)  # fmt: skip
def test_default_rights_do_not_apply_to_internal_topics(topic: str, right: Right) -> None:
    """Each account could read the delayed messages, half messages and dead letters of all others."""
    one = account(
        defaultGroupPerm="DENY", groupPerms=["mine=SUB"], topicPerms=["TRANS_CHECK_MAX_TIME_TOPIC=SUB"]
    )
    assert one.right_to_topic(topic) is right
    for name in ("CID_RMQ_SYS_TRANS", REVIVE_GROUP, SEEN_GROUP):
        assert account().right_to_group(name) is Right.DENY


def reads_from(reader: Account, sender: Account | None) -> bool:
    return may_read_from(reader, "10.0.0.1", sender, "10.0.0.2")


def test_a_replier_may_read_a_topic_of_the_requester() -> None:
    """An account could reply to requests that it must not read."""
    replier = account(defaultTopicPerm="DENY", topicPerms=["A=SUB"])
    assert reads_from(replier, account(defaultTopicPerm="DENY", topicPerms=["A=PUB"]))
    assert not reads_from(replier, account(topicPerms=["A=SUB"]))
    assert not reads_from(replier, account(defaultTopicPerm="DENY", topicPerms=["B=PUB"]))
    administrator = account(admin=True, defaultTopicPerm="DENY")
    limited = account(admin=True, defaultTopicPerm="DENY", topicPerms=["B=PUB"])
    for anyone in (None, administrator):
        assert reads_from(replier, anyone)
        assert not reads_from(account(defaultTopicPerm="PUB"), anyone)
    assert reads_from(administrator, replier)
    assert not reads_from(limited, account())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("secretKey: 12345678", "secretKey: 123456"), "'RocketMQ': accessKey and secretKey must be longer"),
        (("accessKey: RocketMQ", "accessKey: Rocket"), "'Rocket': accessKey"),
        (("topicA=DENY", "topicA=NONE"), "'RocketMQ': unknown right 'NONE'"),
        (("topicA=DENY", "topicA"), "'RocketMQ': 'topicA' is not of the form NAME=RIGHT"),
        (("defaultTopicPerm", "defaultTopicPerms"), "unknown setting defaultTopicPerms"),
        (("admin: false", "admin: maybe"), "admin"),
        (("10.10.103.*", "10.10.103"), "address pattern"),
        (("accounts:", "acounts:"), "unknown setting acounts"),
        (("accounts:", "accounts: []\naccounts:"), "the setting accounts is there twice; remove one"),
        (("topicPerms:", "topicPerms: [x=DENY]\n  topicPerms:"), "the setting topicPerms is there twice"),
        (("accounts:", "accounts: !!set [a]\nb:"), "invalid YAML in line"),
        ((ACCOUNTS, "# nothing"), "no settings"),
        ((ACCOUNTS, "!!python/object/apply:os.system [true]"), "invalid YAML"),
        (("accounts:", "accounts: {very-secret: ["), "invalid YAML"),
        (("secretKey: 12345678", '"secretKey:12345678":'), "unknown setting secretKey"),
        (("accounts:", "accounts: 5\nx:"), "accounts"),
        (("secretKey: 12345678", "secretKey: 2001-99-99"), "cannot be read"),
        (("accounts:", "accounts: &a [*a]\nx:"), "cannot be read"),
        (("topicPerms:", "topicPerms: [[a]]\n  x:"), "topicPerms"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_rejected(change: tuple[str, str], complaint: str) -> None:
    """A misspelt right would silently be granted or denied; YAML could start programs."""
    with pytest.raises(ConfigInvalid) as caught:
        AccessList.of(read_access_file(ACCOUNTS.replace(*change)))
    assert complaint in str(caught.value)
    assert "very-secret" not in str(caught.value)
    assert "12345678" not in str(caught.value)


def test_a_file_survives_being_written() -> None:
    """Each change by mqadmin would also change something else."""
    written = read_access_file(ACCOUNTS)
    assert read_access_file(dump_access_file(written)) == written


def test_secrets_do_not_show() -> None:
    """A log line or a traceback would show the secret."""
    assert "12345678" not in repr(AccessList.of(read_access_file(ACCOUNTS)))


def opened(tmp_path: Path) -> AccessStore:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    path.chmod(0o640)
    store = AccessStore(path, clock=lambda: 1234)
    store.load()
    return store


def test_missing_accounts_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error would not name the expected file, nor the key for another one."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigInvalid) as failure:
        AccessStore(Path("plain_acl.yml")).load()
    assert str(failure.value).startswith(f"{tmp_path}/plain_acl.yml: aclEnable=true needs this file")
    assert "rocketmq.acl.plain.file" in str(failure.value)


def test_an_account_is_changed_added_and_removed(tmp_path: Path) -> None:
    """Accounts could only be kept with an editor on the broker's machine."""
    store = opened(tmp_path)
    store.put_account(PlainAccessConfig(access_key="RocketMQ", topic_perms=["topicD=PUB"]))
    store.put_account(PlainAccessConfig(access_key="another", secret_key="7 or more", admin=True))
    again = AccessStore(store.path)
    again.load()
    changed = again.rules.accounts["RocketMQ"]
    assert changed.secret_key == b"12345678"
    assert (dict(changed.topics), dict(changed.groups)) == ({"topicD": Right.PUB}, {"groupA": Right.DENY})
    assert again.rules.accounts["another"].is_admin
    assert (again.version.counter, again.version.timestamp) == (2, 1234)
    assert store.path.stat().st_mode & 0o777 == 0o640
    assert store.delete_account("another")
    assert not store.delete_account("another")
    store.set_white_addresses(["127.0.0.1"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain_acl.yml"]
    again.reload_changed()
    assert (sorted(again.rules.accounts), again.rules.is_on_allow_list("127.0.0.1")) == (
        ["RocketMQ", "rocketmq2"], True,
    )  # fmt: skip


def test_a_change_that_is_not_understood_changes_nothing(tmp_path: Path) -> None:
    """One wrong command would lock out all users at the next start."""
    store = opened(tmp_path)
    for wrong in (
        PlainAccessConfig(access_key="short", secret_key="long enough"),
        PlainAccessConfig(access_key="RocketMQ", default_topic_perm="ALL"),
        PlainAccessConfig(access_key="RocketMQ", white_remote_address="1.2.3"),
    ):
        with pytest.raises(ConfigInvalid):
            store.put_account(wrong)
    assert store.path.read_text() == ACCOUNTS
    assert store.rules.accounts["RocketMQ"].default_topic is Right.DENY


def test_a_file_that_was_spoilt_leaves_the_rules_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The half-written file of an editor would admit all users, or none."""
    store = opened(tmp_path)
    for spoilt in (b"accounts: [", b"\xff\xfe"):
        store.path.write_bytes(spoilt)
        store.reload_changed()
        store.reload_changed()
        assert set(store.rules.accounts) == {"RocketMQ", "rocketmq2"}
    store.path.unlink()
    store.reload_changed()
    store.reload_changed()
    assert set(store.rules.accounts) == {"RocketMQ", "rocketmq2"}
    assert caplog.text.count("the previous rules remain in effect") == 3  # once for each state of the file


def test_a_file_is_used_once_its_problem_ends_without_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A corrected owner or mode changes no content, so the accounts would not change before a restart."""
    store = opened(tmp_path)
    with monkeypatch.context() as refusing:
        refusing.setattr(Path, "read_text", _denied)
        store.path.write_text(ACCOUNTS.replace("rocketmq2", "rocketmq3"))
        store.reload_changed()
        store.reload_changed()
        assert "rocketmq2" in store.rules.accounts
    store.reload_changed()
    assert "rocketmq3" in store.rules.accounts
    assert caplog.text.count("the previous rules remain in effect") == 1


def test_invalid_content_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand accounts take half a second: checks every 0.5 s would block all requests of the broker."""
    store, parsed = opened(tmp_path), []

    def read(text: str) -> AccessFile:
        parsed.append(text)
        return read_access_file(text)

    monkeypatch.setattr(access_file, "read_access_file", read)
    store.path.write_text("accounts: [")
    for _ in range(3):
        store.reload_changed()
    assert parsed == ["accounts: ["]


def test_the_same_problem_is_logged_again_after_a_change_of_accounts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An administrator's change replaces an invalid file. The next mistake is a new one."""
    store = opened(tmp_path)
    for text in ("accounts: [", "accounts: [ "):
        store.path.write_text(text)
        store.reload_changed()
        store.set_white_addresses(["10.0.0.*"])
    assert caplog.text.count("the previous rules remain in effect") == 2


def test_changes_do_not_replace_a_file_that_a_person_has_spoilt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The second change after the mistake would write the old rules over the work of a person, silently."""
    store = opened(tmp_path)
    spoilt = ACCOUNTS.replace("RocketMQ", "Rocket\tMQ: [")
    store.path.write_text(spoilt)
    for _ in range(3):
        with pytest.raises(ConfigInvalid, match=r"plain_acl\.yml: "):
            store.before_change()
    store.reload_changed()
    assert store.path.read_text() == spoilt
    assert store.problem.startswith(str(store.path))
    assert caplog.text.count("the previous rules remain in effect") == 1
    store.path.write_text(ACCOUNTS.replace("rocketmq2", "rocketmq3"))
    store.before_change()
    assert (store.problem, "rocketmq3" in store.rules.accounts) == ("", True)


def _denied(*_arguments: object) -> str:
    raise PermissionError(13, "permission denied")
