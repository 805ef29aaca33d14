"""What `pydra dev` prints of each thing that happens."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from pydra.diagnosis.explain import Judgement
from pydra_dev.container_runtime.cdi_injection import OciDevice, OciSpec
from pydra_dev.container_runtime.cdi_specs import Hook, IntelRdt, Mount, NetDevice
from pydra_dev.kubelet.observations import (
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
from pydra_dev.kubelet.plugin_acceptance import Plugin
from pydra_dev.manifests import POD, read_sample
from pydra_dev.output.descriptions import (
    Paragraph,
    describe_allocation,
    describe_cdi_spec,
    describe_changes,
    describe_device_changes,
    describe_event,
    describe_hints,
    describe_others,
    describe_sample,
    describe_slices,
    describe_step,
    describe_unused,
    list_published,
    render,
    shorten,
)

PLUGIN = Plugin(driver="gpu.example.com", socket="/r/reg.sock", endpoint="/p/dra.sock")


def called(method: str = "NodePrepareResources", **fields: Any) -> Called:
    return Called(method=method, driver="gpu.example.com", claims=("ns/c",), seconds=0.0123, **fields)


@pytest.mark.parametrize(
    ("step", "headline"),
    [
        (Registered(plugin=PLUGIN), "registered: driver gpu.example.com with the kubelet, service v1.DRAPlugin"),
        (Deregistered(plugin=PLUGIN), "deregistered: driver gpu.example.com, its registration socket is gone"),
        (RegistrationFailed(socket="/r/reg.sock", message="no"), "not registered: reg.sock: no"),
        (SlicesWiped(driver="d", names=("s",)), "wiped: 1 ResourceSlice of driver d"),
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
        (HealthChanged(driver="d", devices=()), "health: driver d stopped reporting, its devices are Unknown"),
    ],
)
def test_every_step_has_a_headline(step: Step, headline: str) -> None:
    paragraph = describe_step(step)
    assert paragraph is not None
    assert paragraph.headline == headline


def test_a_wipe_of_nothing_is_not_printed() -> None:
    assert describe_step(SlicesWiped(driver="", names=())) is None


def test_an_error_is_printed_in_full() -> None:
    assert describe_step(called(error="broken")) == Paragraph(
        headline="NodePrepareResources failed for ns/c after 12.3 ms", details=("broken",)
    )


def test_a_container_is_printed_as_what_its_devices_changed() -> None:
    before = OciSpec(env=("PATH=/bin",))
    after = OciSpec(env=("PATH=/bin", "GPU=0"))
    step = ContainerCreated(pod="ns/p", container="main", cdi_ids=("a/b=c",), before=before, after=after)
    paragraph = describe_step(step)
    assert paragraph is not None
    assert [line.split() for line in paragraph.details] == [["+", "env", "GPU=0"]]


def test_a_config_that_no_driver_reads_is_told() -> None:
    configs = [{"opaque": {"driver": name}} for name in ("gpu.example.com", "gpu.exmaple.com")]
    claim = {"metadata": {"namespace": "ns", "name": "c"}, "spec": {"devices": {"config": configs}}}
    assert describe_unused(claim, {"gpu.example.com"}) == Paragraph(
        headline="without effect: config of claim ns/c",
        details=(
            'config[1] is for driver gpu.exmaple.com, which publishes no device (did you mean "gpu.example.com"?)',
        ),
    )
    assert describe_unused(claim, {"gpu.example.com", "gpu.exmaple.com"}) is None


def test_a_container_without_devices_is_printed_with_the_reason() -> None:
    spec, why = OciSpec(env=("PATH=/bin",)), "no device of claim:c/gpus: the claim has no such request"
    step = ContainerCreated(pod="ns/p", container="main", cdi_ids=(), without=(why,), before=spec, after=spec)
    assert describe_step(step) == Paragraph(
        headline="container created: main of pod ns/p, without CDI devices", details=(why,)
    )


def test_published_devices_are_a_table_of_what_differs_between_them() -> None:
    devices = [
        {
            "name": f"d{number}",
            "attributes": {"x.io/model": {"string": "m"}, "healthy": {"bool": number == 0}},
            "capacity": {"memory": {"value": f"{number + 1}Gi"}},
            "consumesCounters": [{"counterSet": "board", "counters": {"slots": {"value": "2"}}}],
        }
        for number in range(2)
    ]
    devices[1]["taints"] = [{"key": "x.io/bad", "value": "v", "effect": "NoSchedule"}]
    paragraph = describe_slices([{"spec": {"devices": devices[:1]}}, {"spec": {"devices": devices[1:]}}, {"spec": {}}])
    assert paragraph.headline == "published: 2 devices in 3 ResourceSlices"
    assert paragraph.details == (
        "all have model=m, board=slots=2",
        "DEVICE  memory  healthy  taints",
        "d0      1Gi     true     -",
        "d1      2Gi     false    x.io/bad=v:NoSchedule",
    )


def test_columns_that_do_not_fit_are_named_below_the_table() -> None:
    def device(name: str) -> dict[str, Any]:
        return {"name": name, "attributes": {f"attribute-{one:02}": {"string": f"{name} {one}"} for one in range(12)}}

    details = describe_slices([{"spec": {"devices": [device("a"), device("b")]}}]).details
    assert max(map(len, details)) <= 110
    assert details[-1] == "and of each attribute-07, attribute-08, attribute-09, attribute-10, attribute-11"
    assert details[0].split() == ["DEVICE", *(f"attribute-{one:02}" for one in range(7))]


def test_many_published_devices_are_counted() -> None:
    devices = [{"name": f"d{number}", "attributes": {"index": {"int": number}}} for number in range(40)]
    paragraph = describe_slices([{"spec": {"devices": devices}}])
    assert len(paragraph.details) < 20
    assert paragraph.details[-1] == "and 24 more"


def slice_of(generation: int, count: int, *devices: str) -> dict[str, Any]:
    """A slice of a pool that has so many."""
    pool = {"name": "node", "generation": generation, "resourceSliceCount": count}
    return {"spec": {"pool": pool, "devices": [{"name": name} for name in devices]}}


def test_devices_that_come_and_go_are_named_once_all_slices_of_the_pool_are_there() -> None:
    old = slice_of(1, 1, "a", "b")
    assert list_published([old]) == ("a", "b")
    assert list_published([old, slice_of(2, 2, "a")]) is None
    assert list_published([old, slice_of(2, 2, "a"), slice_of(2, 2, "c")]) == ("a", "c")
    assert describe_device_changes(("a", "b"), ("a", "c")) == Paragraph(
        headline="published again: 2 devices", details=("gone: b", "new: c")
    )
    assert describe_device_changes(("a", "b"), ("b", "a")) is None


def test_an_allocation_names_each_request_and_its_device() -> None:
    results = [{"request": "r", "driver": "d", "pool": "p", "device": "x"}]
    claim = {
        "metadata": {"namespace": "ns", "name": "c"},
        "status": {"allocation": {"devices": {"results": results}}},
    }
    assert describe_allocation(claim).details == ("request r gets device x of pool p, driver d",)


def test_the_devices_that_a_claim_did_not_get_are_told_by_their_reason() -> None:
    def review(device: str, reason: str, *, picked: bool = False, values: str = "") -> Judgement:
        return Judgement(request="r", device=("d", "p", device), reason=reason, picked=picked, values=values)

    reviews = [
        review("a", "", picked=True),
        *(review(f"b{index}", "in use") for index in range(6)),
        review("c", ""),
        *(review(size, "no", values=f"kind is part, size is {size}") for size in "123"),
    ]
    assert describe_others(reviews) == (
        "not b0, b1, b2, b3 and 2 more: request r: in use",
        "not c: request r: free too, but the first that fits is taken",
        "not 1, 2, 3: request r: no (kind is part, size is 1; kind is part, size is 2; kind is part, size is 3)",
    )


def test_the_sample_can_be_copied_as_it_is_printed() -> None:
    printed = describe_sample(one.text for one in read_sample("mine", "mine.example.com"))
    assert [one["kind"] for one in yaml.safe_load_all(printed)] == ["DeviceClass", "ResourceClaimTemplate", "Pod"]


def test_an_event_is_told_with_its_object() -> None:
    event = {"reason": "R", "message": "one\ntwo", "involvedObject": {"kind": "Node", "name": "n"}}
    assert describe_event(event) == Paragraph(headline="Event R on Node n:", details=("one", "two"))


def test_a_paragraph_is_laid_out_with_its_time() -> None:
    assert render(Paragraph(headline="h", details=("a", "b")), 1.5) == "   1.500 s  h\n              a\n              b"


def test_a_cdi_spec_is_laid_out_for_reading() -> None:
    assert describe_cdi_spec("/f", b'{"a":{"b":1}}').details == ("{", '  "a": {', '    "b": 1', "  }", "}")


def test_the_hints_name_where_everything_is() -> None:
    hints = describe_hints(
        "/tmp/x",
        backend="npu",
        kubeconfig="/tmp/x/kubeconfig",
        settings="/tmp/x/config.json",
        http_address="127.0.0.1:1",
        pid=42,
        pods=["ns/p"],
        claims=[{"namespace": "ns", "name": "p-npu-x2k"}],
    )
    for needed in (
        "KUBECONFIG=/tmp/x/kubeconfig",
        "PYDRA_CONFIG=/tmp/x/config.json",
        "http://127.0.0.1:1/metrics",
        "kill -9 42",
        "pydra check npu",
        "delete pod -n ns p",
        "pydra explain claim ns/p-npu-x2k",
    ):
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
    device_class, template, pod = (one.body for one in read_sample(backend, driver))
    assert device_class["metadata"]["name"] == driver
    assert driver in device_class["spec"]["selectors"][0]["cel"]["expression"]
    devices = template["spec"]["spec"]["devices"]
    assert devices["requests"][0]["exactly"]["deviceClassName"] == driver
    assert ("config" in devices) is configured
    assert pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert pod["metadata"]["name"] == POD


def mounts(count: int, *, inside: str = "/usr/lib", options: tuple[str, ...] = ("ro",)) -> tuple[Mount, ...]:
    return tuple(
        Mount(host_path=f"/root/lib/{number}.so", container_path=f"{inside}/{number}.so", options=options)
        for number in range(count)
    )


def test_every_kind_of_change_is_described_and_nothing_else() -> None:
    before = OciSpec(env=("KEPT=1",))
    after = OciSpec(
        env=("KEPT=1", "NEW=1"),
        devices=(OciDevice(path="/dev/gpu0", type="c", major=195, minor=0),),
        mounts=mounts(1),
        hooks=(Hook(hook_name="createContainer", path="/bin/hook", args=("hook", "now")),),
        net_devices=(NetDevice(host_interface_name="eth1", name="net0"),),
        intel_rdt=IntelRdt(clos_id="a"),
        additional_gids=(44,),
    )
    lines = describe_changes(before, after)
    assert [line.split()[0] for line in lines] == ["env", "device", "mount", "hook", "network", "rdt", "gid"]
    assert describe_changes(after, after) == ()


def test_many_mounts_of_one_directory_are_counted_and_the_first_are_named() -> None:
    assert describe_changes(OciSpec(), OciSpec(mounts=mounts(40))) == (
        "mount    40 in /usr/lib from /root/lib (ro): 0.so, 1.so, 2.so and 37 more",
    )


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(mounts(6), id="few"),
        pytest.param((*mounts(4), *mounts(4, inside="/usr/lib/sub")), id="few in each directory"),
        pytest.param((*mounts(4), *mounts(4, options=("rw",))), id="few with each options"),
    ],
)
def test_few_mounts_have_a_line_each(found: tuple[Mount, ...]) -> None:
    assert describe_changes(OciSpec(), OciSpec(mounts=found)) == tuple(
        f"mount    {one.container_path} from {one.host_path} ({','.join(one.options)})" for one in found
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param((), "/bin/hook", id="none"),
        pytest.param(tuple("abcdef"), "a b c d e f", id="few"),
        pytest.param(tuple("abcdefgh"), "a b c d e f ... and 2 more", id="many"),
    ],
)
def test_a_hook_is_printed_with_its_first_arguments(arguments: tuple[str, ...], said: str) -> None:
    hook = Hook(hook_name="prestart", path="/bin/hook", args=arguments)
    assert describe_changes(OciSpec(), OciSpec(hooks=(hook,))) == (f"hook     prestart {said}",)


def test_long_lists_are_cut_at_every_depth_and_all_else_stays() -> None:
    long = list(range(50))
    assert shorten({"a": [{"b": long, "c": None}], "d": "text", "e": long[:6]}) == {
        "a": [{"b": [0, 1, 2, "... and 47 more"], "c": None}],
        "d": "text",
        "e": [0, 1, 2, 3, 4, 5],
    }
