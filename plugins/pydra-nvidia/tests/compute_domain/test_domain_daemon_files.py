"""What the daemon of a ComputeDomain writes, when it signals, and how it reads nvidia-imex-ctl."""

from __future__ import annotations

import json
import resource
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra import SettingsError
from pydra_nvidia.atomic_files import overwrite_file
from pydra_nvidia.compute_domain.daemon.configuration import (
    SPACING,
    Loaded,
    find_own,
    merge_hosts,
    parse_peers,
    plan_reload,
    render_configuration,
    render_nodes,
)
from pydra_nvidia.compute_domain.daemon.readiness import find_problems, judge
from pydra_nvidia.compute_domain.daemon.settings import parse_settings
from pydra_nvidia.compute_domain.imex_directories import TEMPLATE

PEERS = {0: ("a", "10.0.0.1"), 2: ("c", "10.0.0.3")}


def render(template: str, tls: str = "") -> str:
    return render_configuration(template, address="10.0.0.1", nodes_file="/imexd/nodes.cfg", tls_directory=tls)


def test_the_agents_template_becomes_a_configuration() -> None:
    lines = render(TEMPLATE).splitlines()
    assert "IMEX_CMD_BIND_INTERFACE_IP=10.0.0.1" in lines
    assert "IMEX_NODE_CONFIG_FILE=/imexd/nodes.cfg" in lines
    assert not any("{{" in line for line in lines)


def test_with_certificates_traffic_is_encrypted_whatever_the_template_says() -> None:
    lines = render("IMEX_ENABLE_AUTH_ENCRYPTION=0\nSERVER_PORT=50000\n", "/tls").splitlines()
    assert [line for line in lines if "ENABLE_AUTH" in line] == ["IMEX_ENABLE_AUTH_ENCRYPTION=1"]
    assert {"IMEX_AUTH_ENCRYPTION_MODE=SSL_TLS", "IMEX_AUTH_SOURCE=FILE"} <= set(lines)
    assert {"IMEX_SERVER_KEY=/tls/tls.key", "IMEX_CLIENT_CERT_AUTH=/tls/ca.crt"} <= set(lines)


def test_a_template_of_another_version_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="found Colour, allowed: IMEXCmdBindInterfaceIP"):
        render("X={{ .Colour }}\n")


def test_all_nodes_have_the_same_list_of_names() -> None:
    assert render_nodes(2) == "compute-domain-daemon-0000\ncompute-domain-daemon-0001\n"


def test_an_entry_counts_with_the_address_that_the_daemon_has_now() -> None:
    entries = [
        {"nodeName": "a", "ipAddress": "10.0.0.1", "cliqueID": "r.1", "index": 0},
        {"nodeName": "b", "ipAddress": "", "cliqueID": "r.1", "index": 1},
        {"nodeName": "c", "ipAddress": "10.0.0.3", "cliqueID": "r.1", "index": 2},
        {"nodeName": "d", "ipAddress": "10.0.0.4", "cliqueID": "", "index": -1},
    ]
    peers = parse_peers({"daemons": entries})
    assert peers == PEERS
    assert find_own(peers, node="c", address="10.0.0.3") == 2
    assert find_own(peers, node="c", address="10.0.0.9") is None
    assert parse_peers(None) == {}


def test_what_is_mounted_is_overwritten_or_stays_as_it_is_on_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("as before\n")
    file = path.stat().st_ino
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (15, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            overwrite_file(path, b"longer than 15 bytes\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "as before\n"
    for text in ("longer than before\n", "short\n"):
        overwrite_file(path, text.encode())
        assert (path.read_text(), path.stat().st_ino) == (text, file)


HOSTS = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n10.0.0.1\tdaemon-x\n"


def test_hosts_has_each_peer_once_and_all_other_lines_as_they_were() -> None:
    once = merge_hosts(HOSTS, PEERS)
    assert once.startswith(HOSTS)
    assert "10.0.0.3\tcompute-domain-daemon-0002\n" in once
    assert merge_hosts(once, PEERS) == once
    other = merge_hosts(once, {1: ("b", "10.0.0.2")})
    assert other.count("compute-domain-daemon-") == 1
    assert other.startswith(HOSTS)


def test_lines_of_nvidias_daemon_in_hosts_are_replaced() -> None:
    theirs = HOSTS + "10.9.9.9\tcompute-domain-daemon-0000\n"
    assert "10.9.9.9" not in merge_hosts(theirs, PEERS)


EIGHTHS = st.integers(0, 160).map(lambda count: count / 8)
"""Seconds whose sums and differences are exact."""


@given(st.lists(st.tuples(st.sampled_from("ab"), EIGHTHS), max_size=8))
def test_after_every_change_a_signal_comes_and_none_within_imexs_window(changes: list[tuple[str, float]]) -> None:
    now, loaded, peers = 0.0, Loaded(peers=((0, "a"),), at=0.0), ((0, "a"),)
    sent = [0.0]
    events = [*changes, ("", 100.0)]
    for address, pause in events:
        if address:
            peers = ((0, address),)
        end = now + pause
        while (due := plan_reload(loaded, peers, now)) is not None and now + due <= end:
            now += due
            loaded = Loaded(peers=peers, at=now)
            sent.append(now)
        now = end
    assert loaded.peers == peers
    assert all(later - earlier >= SPACING for earlier, later in pairwise(sent))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("READY\n", ""),
        ("NOT_READY\n", 'nvidia-imex-ctl says "NOT_READY", and not READY'),
        ("warning: odd\nREADY\n", 'nvidia-imex-ctl says "warning: odd READY", and not READY'),
        ("", 'nvidia-imex-ctl says "", and not READY'),
        (
            "WAITING_FOR_RECOVERY\n",
            "nvidia-imex says WAITING_FOR_RECOVERY: it waits for the nodes that imported memory",
        ),
    ],
)
def test_only_the_word_ready_is_ready(said: str, expected: str) -> None:
    found = judge(said)
    assert found.startswith(expected)
    assert bool(found) is bool(expected)


def answer(**changes: Any) -> str:
    states = {"0": "CONNECTED", "1": "INVALID", "2": "CONNECTED", **changes.get("states", {})}
    versions = {"0": "570", "1": "", "2": "570", **changes.get("versions", {})}
    links = {index: {"host": index, "status": status} for index, status in states.items()}
    return json.dumps({"nodes": {index: {"version": versions[index], "connections": links} for index in states}})


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (answer(), ""),
        (answer(versions={"2": "575"}), "c has driver 575, and this node 570"),
        (answer(states={"2": "INVALID"}, versions={"2": ""}), "c is INVALID"),
        ("Domain State: UP", ""),
        ('{"nodes": []}', ""),
        ('{"nodes": {"0": {"connections": {"2": 3}}, "2": {}}}', ""),
    ],
)
def test_the_domain_is_judged_by_the_nodes_that_exist(said: str, expected: str) -> None:
    assert find_problems(said, {0: "a", 2: "c"}, 0) == expected


def test_a_container_without_cdi_edits_says_so_with_all_that_is_missing() -> None:
    with pytest.raises(SettingsError) as raised:
        parse_settings({"NODE_NAME": "a", "MAX_NODES_PER_IMEX_DOMAIN": "many"})
    text = str(raised.value)
    assert "COMPUTE_DOMAIN_UUID: not set; the container has no edits of CDI" in text
    assert "POD_IP: not set" in text
    assert 'MAX_NODES_PER_IMEX_DOMAIN: found "many", allowed: 1 to 9999' in text
