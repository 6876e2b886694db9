"""Users whom a reverse proxy names: it checks who they are, and puts the name into a header.

Anybody can send such a header, so it counts only on connections that a listed address has opened. That address is the
other end of the TCP connection, as `noting_peer` saw it. `scope["client"]` may be what X-Forwarded-For says instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from ipaddress import IPv6Address, ip_address
from typing import Any

from mainspring.log import get_log
from mainspring.outgoing.addresses import Network, networks_of
from mainspring.service.problems import Problem
from mainspring.service.settings import ServiceSettings
from mainspring.service.tokens import Scope, Token

log = get_log("mainspring.service")

PEER = "mainspring.peer"  # in the scope of a connection: the address of the other end
LONGEST_NAME = 200  # characters
WRONG_NAME = "the proxy sent a wrong user name"

Scoped = MutableMapping[str, Any]
App = Callable[[Scoped, Any, Any], Awaitable[None]]


def noting_peer(app: App) -> App:
    """Return an application that notes where each connection comes from, before anything else can change that."""

    async def note_and_call(scope: Scoped, receive: Any, send: Any) -> None:
        client = scope.get("client")
        scope[PEER] = "" if client is None else client[0]
        await app(scope, receive, send)

    return note_and_call


class ProxyUsers:
    """Finds the user whom a listed proxy names."""

    def __init__(self, header: str, addresses: tuple[str, ...], scopes: tuple[str, ...]) -> None:
        self._header = header.lower().encode()
        self._networks = networks_of(addresses)
        self._scopes = frozenset(map(Scope, scopes))
        self._warned = False

    @classmethod
    def of(cls, settings: ServiceSettings) -> ProxyUsers | None:
        """Return None if the settings name no header, or no proxy that may send it."""
        if settings.proxy_header is None or not settings.proxy_addresses:
            return None
        return cls(settings.proxy_header, settings.proxy_addresses, settings.proxy_scopes)

    def find(self, scope: Scoped) -> Token | None:
        """Return a token with the rights of the user whom the proxy names, or None if it names none.

        Raise Problem if the name cannot be used.

        The token is not in the store. Its id has a colon, so no stored token has the same.
        """
        names = [value for name, value in scope["headers"] if name == self._header]
        if not names or not self._is_listed(scope) or not (name := self._name(names)):
            return None
        return Token(f"user:{name}", name, self._scopes, datetime.fromtimestamp(0, UTC), "proxy")

    def _is_listed(self, scope: Scoped) -> bool:
        peer: str | None = scope.get(PEER)
        if peer is None and not self._warned:
            self._warned = True
            why = "only `mainspring serve` knows where a connection comes from; check users in your own application"
            log.warning("proxy_header_ignored", header=self._header.decode(), reason=why)
        return peer is not None and is_within(peer, self._networks)

    def _name(self, values: list[bytes]) -> str:
        """Return the name. With two headers, one may be the client's: then the proxy adds its own and removes none."""
        header = self._header.decode()
        if len(values) > 1:
            msg = f"{WRONG_NAME}: there are {len(values)} headers {header}; let the proxy replace what clients send"
            raise Problem("unauthorized", msg)
        try:
            name = values[0].decode().strip()
        except UnicodeDecodeError:
            msg = f"{WRONG_NAME}: the header {header} is not text in UTF-8"
            raise Problem("unauthorized", msg) from None
        if len(name) > LONGEST_NAME or not name.isprintable():
            msg = f"{WRONG_NAME}: the header {header} may have up to {LONGEST_NAME} characters that can be printed"
            raise Problem("unauthorized", msg)
        return name


def is_within(address: str, networks: tuple[Network, ...]) -> bool:
    try:
        found = ip_address(address)
    except ValueError:  # not TCP
        return False
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:  # a socket for IPv6 that takes IPv4 too
        found = found.ipv4_mapped
    return any(found in network for network in networks if network.version == found.version)
