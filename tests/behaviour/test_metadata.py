"""Containers find the attributes of their devices in files (KEP-5304), where and as Kubernetes' own readers expect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.behaviour.kubelet import Claim, Device
from tests.behaviour.node import DRIVER, Agent, Node, run_node
from tests.behaviour.waiting import wait_for

ON = ("--device-metadata", "true")
IN_CONTAINER = "/var/run/kubernetes.io/dra-device-attributes"
ATTRIBUTES = {
    "bank": {"int": 2},
    "firmware": {"version": "1.2.3"},
    "resource.kubernetes.io/pciBusID": {"string": "0000:01:00.0"},
}


def directory(node: Node) -> Path:
    return node.plugins / DRIVER / "dra-device-metadata"


def host_file(node: Node, claim: Claim, request: str = "r0") -> Path:
    return directory(node) / f"{claim.namespace}_{claim.name}" / request / "metadata.json"


def metadata_files(node: Node) -> dict[str, bytes]:
    found = [*directory(node).rglob("*"), *node.cdi.glob(f"{DRIVER}_metadata_*")]
    return {str(path): path.read_bytes() for path in found if path.is_file()}


def read_stream(text: str) -> list[Any]:
    """The JSON documents in a file, as Kubernetes' own reader takes them: one after the other."""
    decoder, documents = json.JSONDecoder(), []
    while text := text.lstrip():
        document, end = decoder.raw_decode(text)
        documents.append(document)
        text = text[end:]
    return documents


def mounted(node: Node, device: Device) -> dict[str, list[Any]]:
    """The metadata files that a container gets with the device: path in the container to its documents."""
    mounts = [mount for edits in node.cdi_edits(device) for mount in edits.get("mounts", ())]
    assert all(set(mount["options"]) == {"ro", "bind"} for mount in mounts)
    return {mount["containerPath"]: read_stream(Path(mount["hostPath"]).read_text()) for mount in mounts}


@pytest.fixture(scope="module")
def _quiet_agent() -> Iterator[tuple[Node, Agent]]:
    with run_node() as found:
        yield found, found.serve(*ON)


def test_a_container_finds_the_published_attributes_and_those_that_prepare_added_or_replaced(quiet: Node) -> None:
    name = quiet.board.device()
    claim = quiet.api.create_claim(name)
    (device,) = quiet.kubelet.prepare_one(claim)
    assert device.cdi_ids[1:] == (f"{DRIVER}/metadata={claim.uid}_r0",)
    ((path, documents),) = mounted(quiet, device).items()
    assert path == f"{IN_CONTAINER}/resourceclaims/{claim.name}/r0/{DRIVER}-metadata.json"
    attributes = {**ATTRIBUTES, "serial": {"string": f"serial-{name}"}}
    assert documents == [
        {
            "kind": "DeviceMetadata",
            "apiVersion": f"metadata.resource.k8s.io/{version}",
            "metadata": {"name": claim.name, "namespace": "default", "uid": claim.uid, "generation": 1},
            "requests": [
                {
                    "name": "r0",
                    "devices": [{"driver": DRIVER, "pool": "node-1", "name": name, "attributes": attributes}],
                }
            ],
        }
        for version in ("v1alpha1", "v1beta1")
    ]
    assert (quiet.cdi / f"{DRIVER}_metadata_{claim.uid}_r0.json").stat().st_mode & 0o777 == 0o644
    assert host_file(quiet, claim).stat().st_mode & 0o777 == 0o644
    quiet.kubelet.release(claim)
    assert quiet.is_clean(claim)
    assert not host_file(quiet, claim).parent.parent.exists()


def test_each_request_has_a_file_which_its_first_device_brings(quiet: Node) -> None:
    one, two, three = (quiet.board.device() for _ in range(3))
    claim = quiet.api.create_claim(one, {"device": two, "request": "r1"}, {"device": three, "request": "r1"})
    devices = {device.device: device for device in quiet.kubelet.prepare(claim)[claim.uid].devices}
    files = {name: mounted(quiet, device) for name, device in devices.items()}
    assert [len(found) for found in files.values()] == [1, 1, 0]
    assert [path.split("/")[-2] for found in files.values() for path in found] == ["r0", "r1"]
    (documents,) = files[two].values()
    (request,) = documents[0]["requests"]
    assert [device["name"] for device in request["devices"]] == [two, three]
    quiet.kubelet.release(claim)


def test_the_path_of_a_claim_from_a_template_has_the_name_in_the_pod(quiet: Node) -> None:
    claim = quiet.api.create_claim(quiet.board.device())
    quiet.api.annotate(claim, "gpu", key="resource.kubernetes.io/pod-claim-name")
    (device,) = quiet.kubelet.prepare_one(claim)
    ((path, documents),) = mounted(quiet, device).items()
    assert path == f"{IN_CONTAINER}/resourceclaimtemplates/gpu/r0/{DRIVER}-metadata.json"
    assert {document["podClaimName"] for document in documents} == {"gpu"}
    quiet.kubelet.release(claim)


def test_a_pod_claim_name_that_would_lead_out_of_the_directory_is_refused(quiet: Node) -> None:
    claim = quiet.api.create_claim(quiet.board.device())
    quiet.api.annotate(claim, "../../../../etc", key="resource.kubernetes.io/pod-claim-name")
    assert "must be a DNS label" in quiet.kubelet.refusal(claim)
    assert quiet.is_clean(claim)


def test_an_ended_claim_leaves_the_files_of_a_later_claim_with_its_name(quiet: Node) -> None:
    one, two = quiet.board.device(), quiet.board.device()
    before = quiet.api.create_claim(one, name="again")
    quiet.kubelet.prepare_one(before)
    quiet.api.delete_claim(before)
    after = quiet.api.create_claim(two, name="again")
    (device,) = quiet.kubelet.prepare_one(after)
    quiet.kubelet.release(before)
    (documents,) = mounted(quiet, device).values()
    assert documents[0]["metadata"]["uid"] == after.uid
    quiet.kubelet.release(after)
    assert quiet.is_clean(before)
    assert quiet.is_clean(after)


def test_claims_with_the_longest_names_have_files_of_their_own_and_end(quiet: Node) -> None:
    names = [f"{'n' * 249}{number}" for number in range(2)]
    claims = [quiet.api.create_claim(quiet.board.device(), name=name) for name in names]
    for claim in claims:
        (device,) = quiet.kubelet.prepare_one(claim)
        ((path, documents),) = mounted(quiet, device).items()
        assert path == f"{IN_CONTAINER}/resourceclaims/{claim.name}/r0/{DRIVER}-metadata.json"
        assert documents[0]["metadata"]["name"] == claim.name
    quiet.kubelet.release(*claims)
    assert all(quiet.is_clean(claim) for claim in claims)
    assert not list(directory(quiet).glob("default_n*"))


def test_a_claim_ends_although_its_files_cannot_be_removed(quiet: Node) -> None:
    claim = quiet.api.create_claim(quiet.board.device())
    quiet.kubelet.prepare_one(claim)
    obstacle = quiet.cdi / f"{DRIVER}_metadata_{claim.uid}_r0.json"
    obstacle.unlink()
    obstacle.mkdir()
    quiet.kubelet.release(claim)
    obstacle.rmdir()
    assert quiet.board.steps(claim)[-1] == "unprepared"
    assert not list((quiet.root / "run").rglob(f"{claim.uid}*")), "its record is gone"


def test_if_the_files_cannot_be_written_the_claim_fails_with_the_reason_and_later_succeeds(quiet: Node) -> None:
    directory(quiet).mkdir(parents=True, exist_ok=True)
    claim = quiet.api.create_claim(quiet.board.device())
    obstacle = host_file(quiet, claim).parent.parent
    obstacle.write_text("")
    assert "writing" in (refusal := quiet.kubelet.refusal(claim))
    assert str(host_file(quiet, claim)) in refusal
    wait_for(lambda: quiet.is_clean(claim), "what was begun is undone")
    obstacle.unlink()
    assert len(quiet.kubelet.prepare_one(claim)[0].cdi_ids) == 2
    quiet.kubelet.release(claim)


def test_claims_keep_what_they_were_prepared_with_when_the_setting_changes(node: Node) -> None:
    agent = node.serve(*ON)
    with_files = node.api.create_claim("d0")
    (answered,) = node.kubelet.prepare_one(with_files)
    files = metadata_files(node)
    agent = node.restart(agent)
    without = node.api.create_claim("d1")
    assert node.kubelet.prepare_one(with_files) == (answered,)
    (plain,) = node.kubelet.prepare_one(without)
    assert len(plain.cdi_ids) == 1
    assert metadata_files(node) == files
    for path in files:
        Path(path).unlink()
    node.kubelet.prepare_one(with_files)
    assert metadata_files(node) == files, "what is missing is restored"
    node.restart(agent, *ON)
    assert node.kubelet.prepare_one(without) == (plain,)
    node.kubelet.release(with_files, without)
    assert not metadata_files(node)
    assert node.is_clean(with_files)


def test_a_running_container_finds_new_network_data_in_its_file_with_the_next_generation(node: Node) -> None:
    agent = node.serve(*ON, backend="status_board:")
    claim = node.api.create_claim("d0")
    node.kubelet.prepare_one(claim)
    file = host_file(node, claim)
    mounted_file = file.stat().st_ino

    def has(generation: int, *addresses: str) -> bool:
        found = [
            (one["metadata"]["generation"], one["requests"][0]["devices"][0]["networkData"]) for one in documents()
        ]
        network = {"interfaceName": "net1", "ips": list(addresses)} if addresses else {"interfaceName": "net0"}
        return found == [(generation, network)] * 2

    def documents() -> list[Any]:
        return read_stream(file.read_text())

    assert has(1)
    for generation, address in ((2, "2001:db8::5/64"), (3, "192.0.2.5/24")):
        node.board.set_address(claim, address)
        wait_for(lambda: has(generation, address), "the new address")  # noqa: B023 - called here
    agent.kill()
    node.serve(*ON, backend="status_board:")
    node.kubelet.prepare_one(claim)
    assert has(3, "192.0.2.5/24"), "what the last instance wrote stays"
    node.board.set_address(claim, "192.0.2.6/24")
    wait_for(lambda: has(4, "192.0.2.6/24"), "the new address, after a restart")
    assert file.stat().st_ino == mounted_file, "a mount of the file shows it"
    node.kubelet.release(claim)
    assert not metadata_files(node)


def test_a_kill_in_a_call_leaves_no_metadata_files(node: Node) -> None:
    agent = node.serve(*ON)
    victims = {at: node.api.create_claim(node.board.device(), name=at) for at in ("begin", "effect")}
    node.kubelet.prepare(*victims.values())
    for at in victims:
        node.board.order("unprepare", at, "wait", at=at)
    in_flight = [node.kubelet.start_unprepare(claim) for claim in victims.values()]
    for at in victims:
        node.board.wait_reached("unprepare", at, at=at)
    agent.kill()
    for call in in_flight:
        with pytest.raises(grpc.RpcError):
            call.result()
    node.board.end_processes()
    for at in victims:
        node.board.dismiss("unprepare", at, at=at)
    node.serve()
    wait_for(lambda: all(node.is_clean(claim) for claim in victims.values()), "nothing is left of the claims")


def test_missing_and_leftover_files_are_put_right_without_the_kubelet(node: Node) -> None:
    agent = node.serve(*ON)
    claim, gone = node.api.create_claim("d0"), node.api.create_claim("d1")
    node.kubelet.prepare_one(claim)
    files = metadata_files(node)
    node.kubelet.prepare_one(gone)
    agent.kill()
    for path in files:
        Path(path).unlink()
    for traces in ((node.root / "run").rglob(f"{gone.uid}*"), node.cdi_files(gone)):
        for trace in traces:
            trace.unlink()
    torn = directory(node) / "default_torn" / "r0" / "metadata.json"
    torn.parent.mkdir(parents=True)
    torn.write_text("")
    node.serve()
    wait_for(lambda: metadata_files(node) == files, "the claim's files are restored, and all others removed")


def test_after_a_reboot_the_files_of_claims_that_do_not_come_back_are_removed(node: Node) -> None:
    agent = node.serve(*ON)
    claim = node.api.create_claim("d0")
    node.kubelet.prepare_one(claim)
    assert host_file(node, claim).exists()
    node.reboot(agent)
    wait_for(lambda: not metadata_files(node), "the files are removed")
