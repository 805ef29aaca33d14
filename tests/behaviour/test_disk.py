"""What the agent finds on the disk: leftovers, orphans, damage, the last boot's state."""

from __future__ import annotations

import shutil

import pytest

from tests.behaviour.node import Node
from tests.behaviour.waiting import wait_for

GRACE = 130
"""Seconds; a claim that the API server no longer has is left to the kubelet for two minutes."""


def test_a_claim_that_the_api_server_no_longer_has_is_unprepared_after_a_grace(node: Node) -> None:
    node.serve("--sweep-period", "0.1")
    gone, kept = node.api.create_claim("d0"), node.api.create_claim("d1")
    node.kubelet.prepare(gone, kept)
    node.api.delete_claim(gone)
    node.wait_lookups_of(gone, 3)
    assert not node.is_clean(gone), "the kubelet has the first word"
    node.advance_clock(GRACE)
    wait_for(lambda: node.is_clean(gone), "nothing is left of the claim")
    assert node.board.holders("d1") == {kept.uid}
    assert node.board.steps(kept) == ["prepare", "prepared"]


def test_while_the_api_server_fails_no_claim_counts_as_gone(node: Node) -> None:
    agent = node.serve("--sweep-period", "0.1")
    claims = [node.api.create_claim(f"d{number}") for number in range(2)]
    node.kubelet.prepare(*claims)
    node.api.delete_claim(claims[0])
    node.api_fault(verb="get", resource="resourceclaims", name=claims[1].name, status=500, times=None)
    node.wait_lookups_of(claims[1], 3)
    node.advance_clock(GRACE)
    node.wait_lookups_of(claims[1], 8)
    assert not node.is_clean(claims[0])
    assert agent.process.poll() is None


def test_at_start_a_cdi_file_without_a_claim_is_removed_and_one_that_is_missing_is_restored(node: Node) -> None:
    agent = node.serve()
    claim, other = node.api.create_claim("d0"), node.api.create_claim("d1")
    node.kubelet.prepare(claim, other)
    (file,), (orphan,) = node.cdi_files(claim), node.cdi_files(other)
    content, foreign = file.read_bytes(), node.cdi / "vendor.example.com-device.json"
    node.kubelet.release(other)
    agent.kill()
    orphan.write_bytes(content.replace(claim.uid.encode(), other.uid.encode()))
    foreign.write_bytes(b"{}")
    file.unlink()
    node.serve()
    wait_for(lambda: file.exists() and not orphan.exists(), "the CDI files agree with the claims")
    assert file.read_bytes() == content
    assert foreign.exists(), "files of others are left alone"


@pytest.mark.parametrize("damage", ["cut off", "garbled", "empty"])
def test_a_damaged_record_is_set_aside_and_told_and_costs_no_other_claim(node: Node, damage: str) -> None:
    agent = node.serve()
    victim, other = node.api.create_claim("d0", name="victim"), node.api.create_claim("d1")
    node.kubelet.prepare(victim, other)
    agent.kill()
    for file in node.files_about(victim):
        content = file.read_bytes()
        text = {
            "cut off": content[: content.index(victim.uid.encode())],
            "garbled": b"\xff" * len(content),
            "empty": b"",
        }
        file.write_bytes(text[damage])
    agent = node.serve()
    agent.wait_log(victim.uid)
    assert node.cdi_files(victim), "its containers may start again"
    assert node.board.steps(victim) == ["prepare", "prepared"], "what cannot be read is not undone"
    node.kubelet.prepare_one(other)
    assert node.board.steps(other) == ["prepare", "prepared"]
    node.kubelet.release(victim)
    assert node.board.holders("d0") == set(), "the API server knows what to give back"
    assert agent.process.poll() is None


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


def test_after_a_reboot_a_claim_is_prepared_anew_and_nothing_of_the_old_boot_is_undone(node: Node) -> None:
    agent = node.serve()
    claim, device = node.api.create_claim("d0"), "d0"
    answered = node.kubelet.prepare_one(claim)
    node.reboot(agent)
    assert node.kubelet.prepare_one(claim) == answered
    assert node.board.steps(claim) == ["prepare", "prepared"] * 2
    assert node.board.holders(device) == {claim.uid}
    assert node.cdi_edits(answered[0])
    node.kubelet.release(claim)
    assert node.is_clean(claim)


def test_after_a_reboot_with_an_empty_run_directory_too_unprepare_succeeds(node: Node) -> None:
    agent = node.serve()
    claim = node.api.create_claim("d0")
    node.kubelet.prepare_one(claim)
    node.reboot(agent)
    node.kubelet.release(claim)
    assert node.is_clean(claim)
    node.kubelet.prepare_one(node.api.create_claim("d0"))


@pytest.mark.parametrize("damage", ["one bit flipped", "cut in half"])
def test_damage_to_the_record_of_a_prepared_claim_never_undoes_it(node: Node, damage: str) -> None:
    agent = node.serve()
    victim, other = node.api.create_claim("d0", name="victim"), node.api.create_claim("d1")
    node.kubelet.prepare(victim, other)
    agent.kill()
    for file in node.files_about(victim):
        content = bytearray(file.read_bytes())
        last = content.rindex(victim.uid.encode())
        content[last] ^= 1
        file.write_bytes(content if damage == "one bit flipped" else content[:last])
    node.serve("--sweep-period", "0.1")
    node.wait_lookups_of(other, 3)
    assert node.board.steps(victim) == ["prepare", "prepared"]
    assert "d0" in node.kubelet.refusal(node.api.create_claim("d0")), "its device is held"
    node.kubelet.release(victim)
    assert node.board.holders("d0") == set()


def test_after_a_reboot_unprepare_gives_the_backend_nothing_of_the_old_boots_state(node: Node) -> None:
    agent = node.serve()
    claim = node.api.create_claim("d0")
    node.kubelet.prepare_one(claim)
    node.reboot(agent)
    node.kubelet.release(claim)
    assert not any(line.get("states") for line in node.board.history(claim))


def test_the_device_of_a_claim_that_was_deallocated_is_free_after_a_grace(node: Node) -> None:
    node.serve("--sweep-period", "0.1")
    claim, other = node.api.create_claim("d0"), node.api.create_claim("d0", allocated=False)
    node.kubelet.prepare_one(claim)
    node.api.deallocate(claim)
    node.api.allocate(other, "d0")
    assert "d0" in node.kubelet.refusal(other), "the kubelet has the first word"
    node.advance_clock(GRACE)
    node.wait_lookups_of(claim, 10, unless=lambda: node.is_clean(claim))
    node.advance_clock(GRACE)
    node.wait_lookups_of(claim, 10, unless=lambda: node.is_clean(claim))
    node.kubelet.prepare_one(other)
    assert node.board.holders("d0") == {other.uid}


def test_a_claim_that_the_kubelet_still_has_on_its_list_is_not_unprepared_when_it_is_gone_from_the_api(
    node: Node,
) -> None:
    node.serve("--sweep-period", "0.1")
    gone, kept = node.api.create_claim("d0"), node.api.create_claim("d1")
    node.kubelet.prepare(gone, kept)
    node.write_kubelet_state(gone)
    node.api.delete_claim(gone)
    node.wait_lookups_of(kept, 3)
    node.advance_clock(GRACE)
    node.wait_lookups_of(kept, 10)
    assert node.board.steps(gone) == ["prepare", "prepared"], "a stopped kubelet's containers may still run"
    node.write_kubelet_state()
    node.wait_lookups_of(gone, 2)
    node.advance_clock(GRACE)
    wait_for(lambda: node.is_clean(gone), "the kubelet has forgotten the claim")
