"""What the agent finds on the disk: leftovers, orphans, damage, the last boot's state."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.behaviour.kubelet import Claim, Device
from tests.behaviour.node import Node, run_node
from tests.behaviour.waiting import wait_for

GRACE = 130
"""Seconds; a claim that the API server no longer has is left to the kubelet for two minutes."""


@pytest.fixture(scope="module")
def sweeping() -> Iterator[Node]:
    """A node with an agent that looks for leftovers all the time."""
    with run_node(has_clocks=True) as node:
        node.serve("--sweep-period", "0.1")
        yield node


def test_a_claim_that_the_api_server_no_longer_has_is_unprepared_after_a_grace(sweeping: Node) -> None:
    gone, kept = (sweeping.api.create_claim(sweeping.board.device()) for _ in range(2))
    sweeping.kubelet.prepare(gone, kept)
    sweeping.api.delete_claim(gone)
    sweeping.wait_lookups_of(gone, 3)
    assert not sweeping.is_clean(gone), "the kubelet has the first word"
    sweeping.advance_clock(GRACE)
    wait_for(lambda: sweeping.is_clean(gone), "nothing is left of the claim")
    assert sweeping.board.steps(kept) == ["prepare", "prepared"]
    sweeping.kubelet.release(kept)


def test_while_the_api_server_fails_no_claim_counts_as_gone(sweeping: Node) -> None:
    gone, unknown = (sweeping.api.create_claim(sweeping.board.device()) for _ in range(2))
    sweeping.kubelet.prepare(gone, unknown)
    sweeping.api.delete_claim(gone)
    sweeping.api_fault(verb="get", resource="resourceclaims", name=unknown.name, status=500, times=None)
    sweeping.wait_lookups_of(unknown, 3)
    sweeping.advance_clock(GRACE)
    sweeping.wait_lookups_of(unknown, 8)
    assert not sweeping.is_clean(gone)
    sweeping.kubelet.release(gone, unknown)


def test_the_device_of_a_claim_that_was_deallocated_is_free_after_a_grace(sweeping: Node) -> None:
    device = sweeping.board.device()
    claim, other = sweeping.api.create_claim(device), sweeping.api.create_claim(device, allocated=False)
    sweeping.kubelet.prepare_one(claim)
    sweeping.api.deallocate(claim)
    sweeping.api.allocate(other, device)
    assert device in sweeping.kubelet.refusal(other), "the kubelet has the first word"
    for _ in range(2):
        sweeping.advance_clock(GRACE)
        sweeping.wait_lookups_of(claim, 10, unless=lambda: sweeping.is_clean(claim))
    sweeping.kubelet.prepare_one(other)
    assert sweeping.board.holders(device) == {other.uid}
    sweeping.kubelet.release(other)


def test_a_claim_that_the_kubelet_still_has_on_its_list_is_not_unprepared_when_it_is_gone_from_the_api(
    sweeping: Node,
) -> None:
    gone, kept = (sweeping.api.create_claim(sweeping.board.device()) for _ in range(2))
    sweeping.kubelet.prepare(gone, kept)
    sweeping.write_kubelet_state(gone)
    sweeping.api.delete_claim(gone)
    sweeping.wait_lookups_of(kept, 3)
    sweeping.advance_clock(GRACE)
    sweeping.wait_lookups_of(kept, 10)
    assert sweeping.board.steps(gone) == ["prepare", "prepared"], "a stopped kubelet's containers may still run"
    sweeping.write_kubelet_state()
    sweeping.wait_lookups_of(gone, 2)
    sweeping.advance_clock(GRACE)
    wait_for(lambda: sweeping.is_clean(gone), "the kubelet has forgotten the claim")
    sweeping.kubelet.release(kept)


def test_a_missing_cdi_file_is_restored_before_the_kubelet_finds_the_agent_and_one_without_a_claim_goes(
    node: Node,
) -> None:
    agent = node.serve()
    claim, other = node.api.create_claim("d0"), node.api.create_claim("d1")
    node.kubelet.prepare(claim, other)
    (file,), (orphan,) = node.cdi_files(claim), node.cdi_files(other)
    content, foreign = file.read_bytes(), node.cdi / "vendor.example.com-device.json"
    node.kubelet.release(other)
    agent.kill()
    orphan.write_bytes(b"{}")
    foreign.write_bytes(b"{}")
    file.unlink()
    node.start()
    node.kubelet.register()
    assert file.read_bytes() == content, "containers of the claim may start before the kubelet asks for it"
    wait_for(lambda: not orphan.exists(), "the CDI files agree with the claims")
    assert foreign.exists(), "files of others are left alone"


def damage(content: bytes, uid: bytes) -> dict[str, bytes]:
    """What became of a record with this content: by what happened to it."""
    last = content.rindex(uid)
    return {
        "cut off": content[: content.index(uid)],
        "garbled": b"\xff" * len(content),
        "empty": b"",
        "one bit flipped": bytes(byte ^ (place == last) for place, byte in enumerate(content)),
        "cut in half": content[:last],
    }


DAMAGE = ("cut off", "garbled", "empty", "one bit flipped", "cut in half")


@pytest.fixture(scope="module")
def damaged() -> Iterator[tuple[Node, dict[str, tuple[str, Claim]], Claim]]:
    """An agent that found damaged records: the device and the claim of each, and a claim whose record is whole."""
    with run_node() as node:
        agent = node.serve()
        devices = {what: node.board.device() for what in DAMAGE}
        victims = {what: (device, node.api.create_claim(device)) for what, device in devices.items()}
        other = node.api.create_claim(node.board.device())
        node.kubelet.prepare(*(victim for _, victim in victims.values()), other)
        agent.kill()
        for what, (_, victim) in victims.items():
            for file in node.files_about(victim):
                file.write_bytes(damage(file.read_bytes(), victim.uid.encode())[what])
        agent = node.serve("--sweep-period", "0.1")
        for _, victim in victims.values():
            agent.wait_log(victim.uid)
        wait_for(lambda: len(node.api.events()) >= len(DAMAGE), "an Event of each damaged record")
        node.wait_lookups_of(other, 3)
        yield node, victims, other


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_to_the_record_of_a_prepared_claim_is_reported_and_never_undoes_it(
    damaged: tuple[Node, dict[str, tuple[str, Claim]], Claim], what: str
) -> None:
    node, victims, _ = damaged
    device, victim = victims[what]
    [event] = [one for one in node.api.events() if victim.uid in one["note"]]
    assert event["reason"] == "CheckpointSetAside"
    assert node.cdi_files(victim), "its containers may start again"
    assert node.board.steps(victim) == ["prepare", "prepared"], "what cannot be read is not undone"
    assert device in node.kubelet.refusal(node.api.create_claim(device)), "its device is held"
    node.kubelet.release(victim)
    assert node.board.holders(device) == set(), "the API server knows what to give back"


def test_damaged_records_cost_no_other_claim(
    damaged: tuple[Node, dict[str, tuple[str, Claim]], Claim],
) -> None:
    node, _, other = damaged
    node.kubelet.prepare_one(other)
    assert node.board.steps(other) == ["prepare", "prepared"]


def test_an_empty_disk_is_a_fresh_start(node: Node) -> None:
    agent = node.serve()
    claim = node.api.create_claim("d0")
    node.kubelet.prepare_one(claim)
    agent.kill()
    for path in (node.plugins, node.root / "run", node.cdi):
        shutil.rmtree(path)
        path.mkdir()
    node.serve()
    node.kubelet.prepare_one(claim)
    node.kubelet.release(claim)
    assert node.is_clean(claim)


@pytest.fixture(scope="module")
def rebooted() -> Iterator[tuple[Node, dict[Claim, tuple[Device, ...]]]]:
    """A node after a reboot, and what was answered for its claims before."""
    with run_node() as node:
        agent = node.serve()
        claims = [node.api.create_claim(node.board.device()) for _ in range(2)]
        answered = {claim: node.kubelet.prepare_one(claim) for claim in claims}
        node.reboot(agent)
        yield node, answered


def test_after_a_reboot_a_claim_is_prepared_again_and_nothing_of_the_old_boot_is_undone(
    rebooted: tuple[Node, dict[Claim, tuple[Device, ...]]],
) -> None:
    node, answered = rebooted
    claim, _ = answered
    assert node.kubelet.prepare_one(claim) == answered[claim]
    assert node.board.steps(claim) == ["prepare", "prepared"] * 2
    assert node.board.holders(answered[claim][0].device) == {claim.uid}
    assert node.cdi_edits(answered[claim][0])
    node.kubelet.release(claim)
    assert node.is_clean(claim)


def test_after_a_reboot_unprepare_succeeds_and_gives_the_backend_nothing_of_the_old_boots_state(
    rebooted: tuple[Node, dict[Claim, tuple[Device, ...]]],
) -> None:
    node, answered = rebooted
    _, claim = answered
    node.kubelet.release(claim)
    assert node.is_clean(claim)
    assert not any(line.get("states") for line in node.board.history(claim))
    node.kubelet.prepare_one(node.api.create_claim(answered[claim][0].device))
