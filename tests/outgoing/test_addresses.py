"""Which addresses may be reached."""

from __future__ import annotations

import pytest

from mainspring.errors import ConfigurationError
from mainspring.outgoing.addresses import Reach, networks_of

PRIVATE = [
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254",
    "100.100.100.200", "192.0.0.192", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.1", "203.0.113.1",
    "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:a00:1", "::ffff:169.254.169.254", "64:ff9b::7f00:1",
    "64:ff9b::169.254.169.254", "64:ff9b:1::1", "2002:7f00:1::", "2002:a9fe:a9fe::1",
    "2001:0:4136:e378:8000:63bf:f5ff:fffe", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1",
    "2002:101:101::", "64:ff9b:1:a00:0:100:808:808",
    "ff02::1", "ff0e::1", "2001:db8::1", "3fff::1", "5f00::1", "100::1",
]  # fmt: skip
PUBLIC = ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::1.1.1.1"]


@pytest.mark.parametrize("address", PRIVATE)
def test_what_is_not_public_is_refused(address: str) -> None:
    problem = Reach().problem_of(address, 443)
    assert problem is not None
    assert "outgoing_allow" in problem


@pytest.mark.parametrize("address", PUBLIC)
def test_the_public_internet_may_be_reached_by_the_ports_of_http(address: str) -> None:
    assert [Reach().problem_of(address, port) for port in (80, 443, 8080, 8443)] == [None] * 4
    assert "port 25" in str(Reach().problem_of(address, 25))


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd00:1::7"])
def test_an_allowed_network_may_be_reached_by_any_port(address: str) -> None:
    reach = Reach(networks_of(["10.1.0.0/16", "fd00:1::/64"]))
    assert reach.problem_of(address, 5000) is None
    assert reach.problem_of("10.2.0.1", 443) is not None


def test_what_is_not_an_address_is_refused() -> None:
    assert Reach().problem_of("/run/docker.sock", 80) is not None


@pytest.mark.parametrize("text", ["10.1.0.1/16", "localhost", "10.0.0.0/33", ""])
def test_what_is_not_a_network_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"10\.1\.0\.0/16"):
        networks_of([text])
