"""The host's own addresses are known, as they are now."""

import json
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path

from torpor.network.host_addresses import FRESH, OwnAddresses, host_addresses

IN_A_NAMESPACE = """
import subprocess
from torpor.network.host_addresses import host_addresses
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
for address in ("198.51.100.7/24", "2001:db8::7/64"):
    subprocess.run(["ip", "address", "add", address, "dev", "lo"], check=True)
print(*sorted(map(str, host_addresses())))
"""


def test_this_hosts_addresses_are_its_own() -> None:
    shown = subprocess.run(["ip", "-json", "address"], check=True, capture_output=True).stdout
    local = {
        ip_address(address["local"])
        for interface in json.loads(shown)
        for address in interface.get("addr_info", ())
    }
    assert local
    assert local <= host_addresses()


def test_addresses_of_all_interfaces_and_both_versions() -> None:
    script = [sys.executable, "-c", IN_A_NAMESPACE]
    ran = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", *script],
        check=True,
        capture_output=True,
        text=True,
    )
    assert ran.stdout.split() == [
        "127.0.0.1",
        "127.255.255.255",
        "198.51.100.255",
        "198.51.100.7",
        "2001:db8::7",
        "::1",
    ]


def test_without_ipv6_there_are_the_others(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/fib_trie").write_text(
        "Main:\\n  +-- 0.0.0.0/0 3 0 5\\n     |-- 0.0.0.0\\n        /0 universe UNICAST\\n"
        "Local:\\n     |-- 192.0.2.7\\n        /32 host LOCAL\\n".replace("\\n", "\n")
    )
    assert host_addresses(tmp_path) == {ip_address("192.0.2.7")}


def test_the_kernel_is_asked_again_after_a_moment() -> None:
    now = 100.0
    asked = []

    def read() -> frozenset[object]:
        asked.append(now)
        return frozenset({len(asked)})

    own = OwnAddresses(read, lambda: now)  # type: ignore[arg-type]
    assert own() == own() == {1}
    now += FRESH
    assert own() == {2}
