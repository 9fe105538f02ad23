"""Deny by default: only request codes with allowed callers are handled."""

from rocketpy.protocol.codes import RequestCode
from rocketpy_broker.namesrv import NameServer
from rocketpy_broker.security.allowed_callers import BROKER_CALLERS, NAMESRV_CALLERS, AllowedCaller


def test_every_request_of_the_name_server_has_allowed_callers() -> None:
    """A new request code would be rejected, or a code in the table would have no handler."""
    assert set(NameServer()._handlers) == set(NAMESRV_CALLERS)


def test_changes_need_an_administrator() -> None:
    """CVE-2023-33246: any client could change a server's configuration."""
    for table in (NAMESRV_CALLERS, BROKER_CALLERS):
        changing = {code for code in table if "UPDATE" in _name(code) or "DELETE" in _name(code)}
        changing.discard(RequestCode.UPDATE_CONSUMER_OFFSET)  # consumers do this
        assert {table[code] for code in changing} == {AllowedCaller.ADMIN}


def _name(code: int) -> str:
    return RequestCode(code).name if code in set(RequestCode) else ""
