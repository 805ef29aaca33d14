"""What the story says of things."""

from __future__ import annotations

from typing import Any

import pytest

from pydra_dev.demo import (
    POD,
    Paragraph,
    describe_allocation,
    describe_cdi_spec,
    describe_hints,
    describe_slices,
    describe_step,
    read_sample,
    render,
)
from pydra_dev.kubelet.registration import DraService, Plugin
from pydra_dev.kubelet.steps import (
    Called,
    ContainerCreated,
    Deregistered,
    HealthChanged,
    PodEnded,
    PodFailed,
    PodRunning,
    Registered,
    RegistrationFailed,
    SlicesWiped,
    Step,
)
from pydra_dev.oci import OciSpec

PLUGIN = Plugin(driver="gpu.example.com", socket="/r/reg.sock", endpoint="/p/dra.sock", service=DraService.V1)


def called(method: str = "NodePrepareResources", **fields: Any) -> Called:
    return Called(method=method, driver="gpu.example.com", claims=("ns/c",), seconds=0.0123, **fields)


@pytest.mark.parametrize(
    ("step", "headline"),
    [
        (Registered(plugin=PLUGIN), "registered: driver gpu.example.com with the kubelet, service v1.DRAPlugin"),
        (Deregistered(plugin=PLUGIN), "deregistered: driver gpu.example.com, its registration socket is gone"),
        (RegistrationFailed(socket="/r/reg.sock", message="no"), "not registered: reg.sock: no"),
        (SlicesWiped(driver="d", names=("s",)), "wiped: 1 ResourceSlices of driver d"),
        (SlicesWiped(driver="", names=("s", "t")), "wiped: 2 ResourceSlices of this node"),
        (called(), "prepared: claim ns/c by driver gpu.example.com in 12.3 ms"),
        (called("NodeUnprepareResources"), "unprepared: claim ns/c by driver gpu.example.com in 12.3 ms"),
        (called(error="broken"), "NodePrepareResources failed for ns/c after 12.3 ms"),
        (PodFailed(pod="ns/p", reason="Failed", message="m"), "pod ns/p: Failed"),
        (PodRunning(pod="ns/p"), "running: pod ns/p"),
        (PodEnded(pod="ns/p"), "ended: pod ns/p"),
        (
            HealthChanged(driver="d", devices=(("p", "a", "Healthy"), ("p", "b", "Unhealthy"))),
            "health: devices of d: 1 Healthy, 1 Unhealthy",
        ),
        (HealthChanged(driver="d", devices=()), "health: driver d says nothing any more, its devices are Unknown"),
    ],
)
def test_every_step_has_a_headline(step: Step, headline: str) -> None:
    passage = describe_step(step)
    assert passage is not None
    assert passage.headline == headline


def test_a_wipe_of_nothing_is_not_told() -> None:
    assert describe_step(SlicesWiped(driver="", names=())) is None


def test_an_error_is_told_in_full() -> None:
    assert describe_step(called(error="broken")) == Paragraph(
        headline="NodePrepareResources failed for ns/c after 12.3 ms", details=("broken",)
    )


def test_a_container_is_told_by_what_its_devices_changed() -> None:
    before = OciSpec(env=("PATH=/bin",))
    after = OciSpec(env=("PATH=/bin", "GPU=0"))
    step = ContainerCreated(pod="ns/p", container="main", cdi_ids=("a/b=c",), before=before, after=after)
    passage = describe_step(step)
    assert passage is not None
    assert [line.split() for line in passage.details] == [["+", "env", "GPU=0"]]


def test_published_devices_are_counted_and_the_first_are_shown() -> None:
    devices = [{"name": f"d{number}", "attributes": {"x.io/model": {"string": "m"}}} for number in range(5)]
    passage = describe_slices([{"spec": {"devices": devices[:2]}}, {"spec": {"devices": devices[2:]}}, {"spec": {}}])
    assert passage.headline == "published: 5 devices in 3 ResourceSlices"
    assert passage.details == ("d0: model=m", "d1: model=m", "d2: model=m", "and 2 more")


def test_an_allocation_names_each_request_and_its_device() -> None:
    results = [{"request": "r", "driver": "d", "pool": "p", "device": "x"}]
    claim = {
        "metadata": {"namespace": "ns", "name": "c"},
        "status": {"allocation": {"devices": {"results": results}}},
    }
    assert describe_allocation(claim).details == ("request r gets device x of pool p, driver d",)


def test_a_passage_is_laid_out_with_its_time() -> None:
    assert render(Paragraph(headline="h", details=("a", "b")), 1.5) == "   1.500 s  h\n              a\n              b"


def test_a_cdi_spec_is_laid_out_for_reading() -> None:
    assert describe_cdi_spec("/f", b'{"a":{"b":1}}').details == ("{", '  "a": {', '    "b": 1', "  }", "}")


def test_the_hints_name_where_everything_is() -> None:
    hints = describe_hints("/tmp/x", "/tmp/x/kubeconfig", "127.0.0.1:1", 42)
    for needed in ("KUBECONFIG=/tmp/x/kubeconfig", "http://127.0.0.1:1/metrics", "kill -9 42", f"delete pod {POD}"):
        assert needed in hints


@pytest.mark.parametrize(
    ("backend", "driver", "configured"),
    [
        ("sim", "sim.pydra.dev", True),
        ("sim", "other.example.com", False),
        ("mine", "mine.example.com", False),
    ],
)
def test_a_sample_suits_the_driver_that_it_is_for(backend: str, driver: str, configured: bool) -> None:
    device_class, template, pod = read_sample(backend, driver)
    assert device_class["metadata"]["name"] == driver
    assert driver in device_class["spec"]["selectors"][0]["cel"]["expression"]
    devices = template["spec"]["spec"]["devices"]
    assert devices["requests"][0]["exactly"]["deviceClassName"] == driver
    assert ("config" in devices) is configured
    assert pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert pod["metadata"]["name"] == POD
