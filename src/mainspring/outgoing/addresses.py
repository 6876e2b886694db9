"""Which addresses outgoing requests may reach: those of the public Internet, and networks that are allowed explicitly.

A job's URL comes from the one who enqueues it. Without this check, that caller could reach services that trust their
own network, such as the metadata service of a cloud at 169.254.169.254.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from mainspring.errors import ConfigurationError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

PORTS = frozenset({80, 443, 8080, 8443})
"""Ports of HTTP. Others, such as those of mail servers or databases, are reached only in allowed networks."""

NAT64 = IPv6Network("64:ff9b::/96")
LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
COMPATIBLE = IPv6Network("::/96")
NOT_PUBLIC = tuple(  # `is_global` of some versions of Python says yes to these
    map(
        ip_network,
        (
            "0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "224.0.0.0/4",
            "240.0.0.0/4", "::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16",
            "3fff::/20", "5f00::/16", "fec0::/10", "ff00::/8",
        ),
    )
)  # fmt: skip


def networks_of(texts: Iterable[str]) -> tuple[Network, ...]:
    """Return the networks; raise ConfigurationError if one is not a network such as 10.1.0.0/16."""
    found: list[Network] = []
    for text in texts:
        try:
            found.append(ip_network(text))
        except ValueError as error:
            msg = f"{text!r} is not a network: {error}; write for example 10.1.0.0/16 or fd00:1::/64"
            raise ConfigurationError(msg) from None
    return tuple(found)


def effective(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for, if it does: traffic to it ends there."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if (address in NAT64 or address in LOCAL_NAT64 or address in COMPATIBLE) and int(address) > 1:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def is_translated(address: Address) -> bool:
    """Return whether it only writes an IPv4 address in another way. Tunnels such as 6to4 are more than that."""
    return isinstance(address, IPv4Address) or address.ipv4_mapped is not None or address in NAT64


def is_public(address: Address) -> bool:
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not any(address in network for network in NOT_PUBLIC if network.version == address.version)
    )


@dataclass(frozen=True, slots=True)
class Reach:
    """What may be reached."""

    allowed: Sequence[Network] = ()

    def problem_of(self, host: str, port: int) -> str | None:
        """Return why a socket may not be connected to this address and port; None if it may."""
        try:
            given = ip_address(host.partition("%")[0])
        except ValueError:
            return f"{host!r} is not an IP address"
        address = effective(given)
        if any(address in network for network in self.allowed if network.version == address.version):
            return None
        shown = host if str(address) == host else f"{host} (which stands for {address})"
        if not (is_public(address) and (is_translated(given) or is_public(given))):
            return f"{shown} is not a public address; add its network to `outgoing_allow` if requests may go there"
        if port not in PORTS:
            ports = ", ".join(map(str, sorted(PORTS)))
            return f"port {port} of {shown} is not one of {ports}; add its network to `outgoing_allow` to reach it"
        return None
