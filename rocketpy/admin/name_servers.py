"""NameServers: their key-value settings and their own settings.

Source: RocketMQ 4.6 DefaultMQAdminExt; mqadmin's commands updateKvConfig, deleteKvConfig, getNamesrvConfig,
updateNamesrvConfig.
"""

from __future__ import annotations

from collections.abc import Mapping

from rocketpy.admin.requests import AdminRequests, if_found
from rocketpy.protocol.bodies import KVTable, decode_settings, encode_settings
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    DeleteKVConfigRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    PutKVConfigRequestHeader,
)


class NameServers:
    """Name servers: ``admin.name_servers``.

    Each name server keeps settings of its own. Changes go to all of them, and raise BrokersFailed if some
    failed; the same call may be repeated. Queries go to one. Every method raises ClientClosed, TransportError
    and BrokerError.

    A namespace of key-value settings has nothing to do with the namespace of the client. That of ordered
    topics, ``ORDER_TOPIC_CONFIG``, is kept by `rocketpy.admin.topics.Topics`.
    """

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    # -- key-value settings -------------------------------------------------------------------

    async def get(self, namespace: str, key: str) -> str | None:
        """Return a value; None if there is none."""
        header = GetKVConfigRequestHeader(namespace=namespace, key=key)
        call = self._requests.call_namesrv(RequestCode.GET_KV_CONFIG, header)
        response = await if_found(call, ResponseCode.QUERY_NOT_FOUND)
        return None if response is None else response.header_as(GetKVConfigResponseHeader).value

    async def namespace(self, namespace: str) -> dict[str, str]:
        """Return all keys and values of a namespace; empty for an unknown one."""
        header = GetKVListByNamespaceRequestHeader(namespace=namespace)
        call = self._requests.call_namesrv(RequestCode.GET_KVLIST_BY_NAMESPACE, header)
        response = await if_found(call, ResponseCode.QUERY_NOT_FOUND)
        return {} if response is None else KVTable.decode(response.body).table

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value at every name server."""
        header = PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
        await self._requests.call_each_namesrv(RequestCode.PUT_KV_CONFIG, header)

    async def delete(self, namespace: str, key: str) -> None:
        """Delete a value at every name server; a missing value is not an error."""
        header = DeleteKVConfigRequestHeader(namespace=namespace, key=key)
        await self._requests.call_each_namesrv(RequestCode.DELETE_KV_CONFIG, header)

    # -- settings -----------------------------------------------------------------------------

    async def config(self) -> dict[str, dict[str, str]]:
        """Return the settings of each name server by its address."""
        found = await self._requests.call_each_namesrv(RequestCode.GET_NAMESRV_CONFIG)
        return {name.split()[-1]: decode_settings(response.body) for name, response in found.items()}

    async def set_config(self, changes: Mapping[str, str]) -> None:
        """Change settings of every name server.

        A rocketpy name server needs ``remoteConfigUpdateEnable=true`` in its file, and allows few settings.

        Args:
            changes: New values by name, as in namesrv.conf.
        """
        body = encode_settings(changes)
        await self._requests.call_each_namesrv(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
