"""NameServers: reads and changes key-value settings, and the settings of the name servers themselves.

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

    Name servers do not share settings. Changes and `config` send to all of them, and raise BrokersFailed if
    some fail; the same call may be repeated. Other queries go to one name server. Every method raises
    ClientClosed, TransportError and BrokerError.

    A namespace of key-value settings is unrelated to the namespace of the client. Do not edit the namespace
    ``ORDER_TOPIC_CONFIG`` of ordered topics: `rocketpy.admin.topics.Topics` maintains it.
    """

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    # -- key-value settings -------------------------------------------------------------------

    async def get(self, namespace: str, key: str) -> str | None:
        """Return the value of a key; None if the key does not exist."""
        header = GetKVConfigRequestHeader(namespace=namespace, key=key)
        call = self._requests.call_namesrv(RequestCode.GET_KV_CONFIG, header)
        response = await if_found(call, ResponseCode.QUERY_NOT_FOUND)
        return None if response is None else response.header_as(GetKVConfigResponseHeader).value

    async def namespace(self, namespace: str) -> dict[str, str]:
        """Return all keys and values of a namespace; an unknown namespace has none."""
        header = GetKVListByNamespaceRequestHeader(namespace=namespace)
        call = self._requests.call_namesrv(RequestCode.GET_KVLIST_BY_NAMESPACE, header)
        response = await if_found(call, ResponseCode.QUERY_NOT_FOUND)
        return {} if response is None else KVTable.decode(response.body).table

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set the value of a key at every name server."""
        header = PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
        await self._requests.call_all_namesrv(RequestCode.PUT_KV_CONFIG, header)

    async def delete(self, namespace: str, key: str) -> None:
        """Delete a key at every name server; a missing key is not an error."""
        header = DeleteKVConfigRequestHeader(namespace=namespace, key=key)
        await self._requests.call_all_namesrv(RequestCode.DELETE_KV_CONFIG, header)

    # -- settings -----------------------------------------------------------------------------

    async def config(self) -> dict[str, dict[str, str]]:
        """Return the settings of each name server, by its address."""
        found = await self._requests.call_all_namesrv(RequestCode.GET_NAMESRV_CONFIG)
        return {name.split()[-1]: decode_settings(response.body) for name, response in found.items()}

    async def set_config(self, changes: Mapping[str, str]) -> None:
        """Change settings of every name server.

        A rocketpy name server needs ``remoteConfigUpdateEnable=true`` in its file, and allows few settings.

        Args:
            changes: New values by name, as in namesrv.conf.
        """
        body = encode_settings(changes)
        await self._requests.call_all_namesrv(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
