"""NOTES tell what to do next, for what is enabled and for the cluster's version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.chart.cluster import open_cluster
from tests.chart.rendering import BOTH, CHART, COMPUTE_DOMAIN, CPU, NVIDIA, SIM, at, overlay, render_files


def notes(values: Mapping[str, Any], version: str = "v1.36.2", *objects: Mapping[str, Any]) -> str:
    """For a cluster of this version with these objects."""
    with open_cluster(*objects, version=version) as config:
        text: str = config.install(CHART, "pydra", dict(values), dry_run="server")["notes"]
        return text


def test_each_enabled_backend_has_its_commands() -> None:
    text = render_files(BOTH)["NOTES.txt"]
    for line in (
        "kubectl -n pydra-system rollout status daemonset/pydra-nvidia --timeout=2m",
        "kubectl -n pydra-system rollout status daemonset/pydra-sim --timeout=2m",
        "kubectl get resourceslices --field-selector spec.driver=gpu.nvidia.com",
        "kubectl get resourceslices --field-selector spec.driver=sim.pydra.dev",
        "DeviceClasses for claims: gpu.nvidia.com, mig.nvidia.com, vfio.gpu.nvidia.com",
        "nvidia.com/gpu in a container's limits is gpu.nvidia.com",
        "kubectl label node NODE nvidia.com/gpu.present=true",
        "helm test pydra -n pydra-system",
        "helm uninstall pydra -n pydra-system",
    ):
        assert line in text
    text = render_files(SIM)["NOTES.txt"]
    assert "nvidia" not in text
    assert "webhook" not in text


def test_a_label_is_suggested_that_an_agents_nodes_have_and_none_that_they_lack() -> None:
    own = [{"key": "gpu", "operator": "Exists"}, {"key": "old", "operator": "NotIn", "values": ["yes"]}]
    text = render_files(NVIDIA, at("backends.nvidia.nodeAffinity", own))["NOTES.txt"]
    assert "kubectl label node NODE gpu=true" in text
    assert "old=yes" not in text


def test_a_backend_whose_classes_come_from_somewhere_else_has_none_here() -> None:
    values = {"enabled": True, "driver": "fpga.example.com", "deviceClasses": {"classes": {}}}
    assert "DeviceClasses for claims: none of this release" in render_files(at("backends.fpga", values))["NOTES.txt"]


def test_who_has_the_controller_of_compute_domains_is_warned_what_goes_before_its_removal() -> None:
    on = overlay(COMPUTE_DOMAIN, at("computeDomainController.enabled", True))
    assert "delete all ComputeDomains, and" in render_files(on)["NOTES.txt"]
    assert "ComputeDomains:" not in render_files(COMPUTE_DOMAIN)["NOTES.txt"]


def test_one_pod_is_one_daemonset_to_wait_for() -> None:
    text = render_files(overlay(BOTH, {"onePod": True}))["NOTES.txt"]
    assert "rollout status daemonset/pydra --" in text
    assert text.count("rollout status") == 1


@pytest.mark.parametrize(
    ("version", "are_off"),
    [("v1.35.0-gke.100", True), ("v1.36.0", False)],
)
def test_feature_gates_that_are_needed_and_off_are_named(version: str, are_off: bool) -> None:
    values = overlay(NVIDIA, at("backends.nvidia.settings", {"dynamicMig": True, "consumableShares": 4}))
    text = notes(values, version)
    for gate in ("DRAPartitionableDevices", "DRAConsumableCapacity", "DRAExtendedResource", "DRADeviceTaints"):
        assert (gate in text) == are_off, gate


@pytest.mark.parametrize("its", [{"settings": {"nodeAllocatable": True}}, {"overheads": {"memory": {"perPod": "1Mi"}}}])
def test_a_gate_that_newer_releases_have_off_too_is_named(its: Mapping[str, Any]) -> None:
    text = notes(overlay(CPU, at("backends.cpu", its)), "v1.37.0")
    assert ": the feature gate DRANodeAllocatableResources is needed in API server and scheduler" in text


def test_a_gate_that_one_pool_of_nodes_needs_is_named() -> None:
    pool = {"label": "l", "pools": {"a": {"values": ["b"], "settings": {"dynamicMig": True}}}}
    assert "dynamicMig: the feature gate" in notes(overlay(NVIDIA, at("backends.nvidia.nodePools", pool)), "v1.34.1")


def test_shares_by_memory_need_their_gate_too() -> None:
    assert "DRAConsumableCapacity" in notes(
        overlay(NVIDIA, at("backends.nvidia.settings.consumableShares", "memory")), "v1.34.1"
    )


def test_a_gate_that_is_not_needed_is_not_named() -> None:
    text = notes(overlay(NVIDIA, at("backends.nvidia.settings.consumableShares", "disabled")), "v1.34.0")
    assert "DRAPartitionableDevices" not in text
    assert "DRAConsumableCapacity" not in text


def test_notes_have_no_holes() -> None:
    for values in (SIM, NVIDIA, BOTH, overlay(BOTH, at("deviceClasses.create", False))):
        text = render_files(values)["NOTES.txt"]
        assert "<no value>" not in text
        assert "\n\n\n" not in text
        assert max(map(len, text.splitlines())) <= 120


def test_a_policy_for_another_image_than_the_charts_is_reported() -> None:
    values = overlay(SIM, at("configPolicy.create", True))
    words = "Its policy knows the configs of 0.1.0, and the image is another"
    assert words not in render_files(values)["NOTES.txt"]
    assert words not in render_files(values, at("image.tag", "0.1.0"))["NOTES.txt"]
    assert words in render_files(values, at("image.tag", "0.2.0"))["NOTES.txt"]
    assert words in render_files(values, at("backends.sim.image.digest", f"sha256:{'0' * 64}"))["NOTES.txt"]


def test_nodes_whose_devices_a_device_plugin_gives_out_too_are_reported() -> None:
    def node(name: str, **allocatable: str) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": allocatable}}

    nodes = [
        node("a", **{"nvidia.com/gpu": "0"}),
        node("b", **{"nvidia.com/gpu": "8"}),
        node("c", cpu="4"),
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "new"}},
        node("d", **{"nvidia.com/gpu": "4"}),
    ]
    told = " ".join(notes(NVIDIA, "v1.36.2", *nodes).split())
    assert "WARNING: a device plugin offers nvidia.com/gpu on 2 nodes, b for one. Where an agent runs too" in told
    assert "WARNING" not in notes(NVIDIA, "v1.36.2", nodes[0], nodes[2])
    assert "WARNING" not in notes(SIM, "v1.36.2", *nodes)


def test_images_of_no_registry_are_reported() -> None:
    words = "image.registry is not set"
    assert f"Have pydra-sim:0.1.0 on the nodes: {words}" in render_files(SIM)["NOTES.txt"]
    for path in ("image.registry", "backends.sim.image.registry"):
        assert words not in render_files(SIM, at(path, "registry.example.com"))["NOTES.txt"]
    assert words not in render_files(SIM, at("image.repository", "localhost:5000/team/pydra"))["NOTES.txt"]
    assert "Have pydra-nvidia:0.1.0 on" in render_files(BOTH, at("backends.sim.image.registry", "r.io"))["NOTES.txt"]
