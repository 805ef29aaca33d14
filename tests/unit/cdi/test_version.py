"""The lowest version for each feature."""

from __future__ import annotations

import pytest

from pydra.cdi.document import Spec, SpecDevice
from pydra.cdi.edits import ContainerEdits
from pydra.cdi.version import minimum_version

NOTHING = ContainerEdits()


@pytest.mark.parametrize(
    ("edits", "version"),
    [
        pytest.param(NOTHING.with_env("A", "1").with_device_node("/dev/a").with_mount("/m"), "0.3.0", id="plain"),
        pytest.param(NOTHING.with_mount("/m", type="bind"), "0.4.0", id="type of a mount"),
        pytest.param(NOTHING.with_device_node("/dev/a", host_path="/dev/b"), "0.5.0", id="host path of a device node"),
        pytest.param(NOTHING.with_intel_rdt(clos_id="x"), "0.7.0", id="Intel RDT"),
        pytest.param(NOTHING.with_additional_gids(5), "0.7.0", id="additional groups"),
        pytest.param(NOTHING.with_net_device("a", "b"), "1.1.0", id="network devices"),
        pytest.param(NOTHING.with_intel_rdt(schemata=["x"]), "1.1.0", id="schemata"),
        pytest.param(NOTHING.with_intel_rdt(enable_monitoring=True), "1.1.0", id="monitoring"),
        pytest.param(NOTHING.with_mount("/m", type="bind").with_additional_gids(5), "0.7.0", id="the highest counts"),
    ],
)
def test_the_lowest_version_that_has_the_feature_is_chosen(edits: ContainerEdits, version: str) -> None:
    device = SpecDevice(name="d", edits=edits)
    plain = SpecDevice(name="e", edits=NOTHING.with_env("A", "1"))
    assert minimum_version(Spec(version="", kind="a/b", devices=(device, plain))) == version
    assert minimum_version(Spec(version="", kind="a/b", devices=(plain,), edits=edits)) == version


@pytest.mark.parametrize(
    ("spec", "version"),
    [
        pytest.param(Spec(version="", kind="a/b", devices=(SpecDevice(name="0", edits=NOTHING),)), "0.5.0", id="digit"),
        pytest.param(Spec(version="", kind="a/b", devices=(), annotations={"a": "b"}), "0.6.0", id="annotations"),
        pytest.param(
            Spec(version="", kind="a/b", devices=(SpecDevice(name="d", edits=NOTHING, annotations={"a": "b"}),)),
            "0.6.0",
            id="annotations of a device",
        ),
        pytest.param(Spec(version="", kind="a/b.c", devices=()), "0.6.0", id="dot in the class"),
        pytest.param(Spec(version="", kind="a.b/c", devices=()), "0.3.0", id="dot in the vendor"),
    ],
)
def test_names_and_annotations_count_too(spec: Spec, version: str) -> None:
    assert minimum_version(spec) == version
