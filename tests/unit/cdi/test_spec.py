"""From prepared devices to the content of a claim's CDI file, and to the ids that the kubelet gets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from pydra.cdi.edit_rules import find_edit_problems
from pydra.cdi.edits import ContainerEdits, DeviceNode, Hook, Mount, NetDevice
from pydra.cdi.host_path_checks import drop_absent
from pydra.cdi.spec import ClaimSpec, build_spec
from pydra.claim import PreparedDevice
from pydra.errors import ContractError, EditConflict
from tests.unit.cdi import strategies

UID = "a1b2"
DRIVER = "gpu.example.com"
NOTHING = ContainerEdits()


def _device(edits: ContainerEdits, name: str = "gpu-0", request: str = "gpu", **more: Any) -> PreparedDevice:
    return PreparedDevice(request=request, pool="node-a", device=name, edits=edits, **more)


def _spec(*edits: ContainerEdits, driver: str = DRIVER, uid: str = UID) -> dict[str, Any]:
    content = build_spec(driver, uid, [_device(one, f"gpu-{index}") for index, one in enumerate(edits)]).content
    assert content is not None
    spec: dict[str, Any] = json.loads(content)
    return spec


def _conflicts(*edits: ContainerEdits) -> tuple[str, ...]:
    try:
        _spec(*edits)
    except EditConflict as error:
        return error.conflicts
    return ()


def test_the_file_has_the_names_of_the_specification() -> None:
    edits = (
        ContainerEdits()
        .with_env("B", "2")
        .with_env("A", "1=1")
        .with_device_node("/dev/a", host_path="/dev/b", major=0, file_mode=0o660, permissions="rw")
        .with_mount("/m", options=())
        .with_hook("poststop", "/h", args=["h"], timeout=3)
        .with_net_device("eth0", "net0")
        .with_intel_rdt(clos_id="c", l3_cache_schema="L3", mem_bw_schema="MB", schemata=["s"], enable_monitoring=True)
        .with_additional_gids(5)
    )
    assert _spec(edits) == {
        "cdiVersion": "1.1.0",
        "kind": "gpu.example.com/claim",
        "devices": [
            {
                "name": "a1b2:gpu:gpu-0",
                "containerEdits": {
                    "env": ["A=1=1", "B=2"],
                    "deviceNodes": [
                        {"path": "/dev/a", "hostPath": "/dev/b", "major": 0, "fileMode": 432, "permissions": "rw"}
                    ],
                    "netDevices": [{"hostInterfaceName": "eth0", "name": "net0"}],
                    "hooks": [{"hookName": "poststop", "path": "/h", "args": ["h"], "timeout": 3}],
                    "mounts": [{"hostPath": "/m", "containerPath": "/m"}],
                    "intelRdt": {
                        "closID": "c",
                        "l3CacheSchema": "L3",
                        "memBwSchema": "MB",
                        "schemata": ["s"],
                        "enableMonitoring": True,
                    },
                    "additionalGids": [5],
                },
            }
        ],
    }


@pytest.mark.parametrize(
    ("driver", "device", "cdi_id"),
    [
        pytest.param(DRIVER, {}, "gpu.example.com/claim=a1b2:gpu:gpu-0", id="plain"),
        pytest.param(DRIVER, {"request": "gpu/large"}, "gpu.example.com/claim=a1b2:gpu:gpu-0", id="subrequest"),
        pytest.param(DRIVER, {"share_id": "0b1c"}, "gpu.example.com/claim=a1b2:gpu:gpu-0:0b1c", id="share"),
        pytest.param("3d.example.com", {}, "k8s.3d.example.com/claim=a1b2:gpu:gpu-0", id="driver with a leading digit"),
    ],
)
def test_the_kubelets_id_names_a_device_in_the_file(driver: str, device: dict[str, str], cdi_id: str) -> None:
    prepared = _device(NOTHING.with_env("A", "1"), **device)
    built = build_spec(driver, UID, [prepared])
    assert built.ids == ((cdi_id,),)
    spec = json.loads(built.content or b"")
    assert f"{spec['kind']}={spec['devices'][0]['name']}" == cdi_id


@pytest.mark.parametrize(
    "edits", [pytest.param(NOTHING, id="nothing"), pytest.param(NOTHING.with_additional_gids(0), id="group 0")]
)
def test_a_device_that_edits_nothing_has_no_id_and_is_left_out(edits: ContainerEdits) -> None:
    idle, busy = _device(edits), _device(NOTHING.with_env("A", "1"), "gpu-1")
    alone, beside = build_spec(DRIVER, UID, [idle]), build_spec(DRIVER, UID, [idle, busy])
    assert (alone.content, alone.ids) == (None, ((),))
    assert beside.content == build_spec(DRIVER, UID, [busy]).content
    assert beside.ids[0] == ()
    assert beside.ids[1]


@given(edits=strategies.edits)
def test_a_claim_has_a_file_exactly_when_its_devices_have_ids(edits: ContainerEdits) -> None:
    assume(not _conflicts(edits.with_env("SOME", "1")))
    built = build_spec(DRIVER, UID, [_device(edits)])
    assert (built.content is None) == (built.ids == ((),))


@pytest.mark.parametrize(
    ("edits", "problem"),
    [
        pytest.param(NOTHING.with_env("", "1"), "env: '' is not a valid name", id="variable without a name"),
        pytest.param(NOTHING.with_env("A=B", "1"), "env: 'A=B' is not a valid name", id="equals sign in a name"),
        pytest.param(NOTHING.with_env("A", "1\0"), "NUL", id="NUL in a value"),
        pytest.param(NOTHING.with_device_node(""), "deviceNodes[0].path: '' must be an absolute path", id="no path"),
        pytest.param(NOTHING.with_device_node("dev/a"), "deviceNodes[0].path: 'dev/a'", id="node, relative path"),
        pytest.param(
            NOTHING.with_device_node("/a", host_path="b"), "deviceNodes[0].hostPath: 'b'", id="node, host path"
        ),
        pytest.param(
            NOTHING.with_device_node("/a", type="x"), "deviceNodes[0].type: 'x' must be one of b, c, u, p", id="type"
        ),
        pytest.param(NOTHING.with_device_node("/a", permissions="rx"), "permissions: 'rx'", id="permissions"),
        pytest.param(NOTHING.with_device_node("/a", permissions="nonerw"), "permissions: 'nonerw'", id="none and more"),
        pytest.param(NOTHING.with_device_node("/a", major=2**63), "major: 9223372036854775808 must", id="major"),
        pytest.param(NOTHING.with_device_node("/a", uid=-1), "uid: -1 must be between 0 and 4294967295", id="uid"),
        pytest.param(NOTHING.with_device_node("/a", gid=2**32), "gid: 4294967296 must", id="gid"),
        pytest.param(NOTHING.with_device_node("/a", file_mode=-1), "fileMode: -1 must", id="file mode"),
        pytest.param(NOTHING.with_mount("", "/a"), "mounts[0].hostPath: '' must be an absolute", id="mount of nothing"),
        pytest.param(
            NOTHING.with_mount("/a", "b"), "mounts[0].containerPath: 'b' must be an absolute", id="mount, relative"
        ),
        pytest.param(
            NOTHING.with_mount("", "/a", type="tmpfs"), "mounts[0].hostPath: must not be empty", id="no source"
        ),
        pytest.param(
            NOTHING.with_hook("later", "/h"), "hooks[0].hookName: 'later' must be one of prestart", id="hook name"
        ),
        pytest.param(NOTHING.with_hook("poststop", "h"), "hooks[0].path: 'h' must be an absolute path", id="hook path"),
        pytest.param(NOTHING.with_hook("poststop", "/h", env=["A"]), "hooks[0].env: 'A' must be", id="hook variable"),
        pytest.param(NOTHING.with_hook("poststop", "/h", timeout=-1), "hooks[0].timeout: -1 must", id="timeout"),
        pytest.param(
            NOTHING.with_net_device("", "a"), "netDevices[0].hostInterfaceName: must not be empty", id="no interface"
        ),
        pytest.param(NOTHING.with_net_device("a", ""), "netDevices[0].name: must not be empty", id="no interface name"),
        pytest.param(
            NOTHING.with_net_device("a", "b").with_net_device("a", "c"),
            "2 entries have the hostInterfaceName 'a'",
            id="host interface twice",
        ),
        pytest.param(
            NOTHING.with_net_device("a", "c").with_net_device("b", "c"), "2 entries have the name 'c'", id="name twice"
        ),
        pytest.param(NOTHING.with_intel_rdt(clos_id=".."), "intelRdt.closID: '..'", id="closID up"),
        pytest.param(NOTHING.with_intel_rdt(clos_id="a/b"), "intelRdt.closID: 'a/b'", id="closID with a slash"),
        pytest.param(NOTHING.with_intel_rdt(clos_id="a\n"), "intelRdt.closID", id="closID with a newline"),
        pytest.param(NOTHING.with_intel_rdt(clos_id="a" * 4096), "intelRdt.closID", id="long closID"),
        pytest.param(NOTHING.with_additional_gids(-1), "additionalGids: -1 must be between", id="negative group"),
    ],
)
def test_edits_that_break_a_rule_are_the_backends_fault(edits: ContainerEdits, problem: str) -> None:
    with pytest.raises(ContractError) as caught:
        _spec(edits)
    (found,) = caught.value.violations
    assert found.startswith("device gpu-0 (request gpu): ")
    assert problem in found


def test_all_violations_of_all_devices_are_reported_at_once() -> None:
    with pytest.raises(ContractError) as caught:
        _spec(NOTHING.with_env("", "a").with_device_node("x"), NOTHING.with_mount("y"))
    assert caught.value.violations == (
        "device gpu-0 (request gpu): env: '' is not a valid name of an environment variable",
        "device gpu-0 (request gpu): deviceNodes[0].path: 'x' must be an absolute path",
        "device gpu-1 (request gpu): mounts[0].containerPath: 'y' must be an absolute path",
        "device gpu-1 (request gpu): mounts[0].hostPath: 'y' must be an absolute path",
    )


def test_edits_are_not_compared_with_all_others() -> None:
    """An answer has place for so many, and a backend could keep the agent from all others for hours."""
    interfaces = tuple(NetDevice(host_interface_name=f"a{one}", name=f"b{one}") for one in range(100_000))
    assert list(find_edit_problems(ContainerEdits(net_devices=interfaces))) == []
    mounts = tuple(Mount(host_path=f"/a/{one}", container_path="/b", optional=True) for one in range(100_000))
    device = PreparedDevice(request="r", pool="p", device="d", edits=ContainerEdits(mounts=mounts))
    (left,) = drop_absent([device], {one.host_path: "no such file or directory" for one in mounts})
    assert left.edits == ContainerEdits()


def test_a_text_that_only_looks_like_a_nul_byte_is_accepted() -> None:
    assert _spec(NOTHING.with_env("A", r"\u0000"))


def test_a_device_prepared_twice_is_refused() -> None:
    device = _device(NOTHING.with_env("A", "1"))
    with pytest.raises(ContractError, match="prepared twice"):
        build_spec(DRIVER, UID, [device, device])


@pytest.mark.parametrize(
    ("first", "second", "conflict"),
    [
        pytest.param(
            NOTHING.with_env("VISIBLE", "0"),
            NOTHING.with_env("VISIBLE", "1"),
            'environment variable VISIBLE: device gpu-0 (request gpu) sets "0", device gpu-1 (request gpu) sets "1"',
            id="a variable",
        ),
        pytest.param(
            NOTHING.with_device_node("/dev/ctl", permissions="rw"),
            NOTHING.with_device_node("/dev//ctl", permissions="r"),
            'device node /dev/ctl: device gpu-0 (request gpu) sets path="/dev/ctl" permissions="rw", '
            'device gpu-1 (request gpu) sets path="/dev//ctl" permissions="r"',
            id="a device node, spelt in two ways",
        ),
        pytest.param(
            NOTHING.with_mount("/opt/a", "/lib/x"),
            NOTHING.with_mount("/opt/b", "/lib/x"),
            'mount at /lib/x: device gpu-0 (request gpu) sets host_path="/opt/a", '
            'device gpu-1 (request gpu) sets host_path="/opt/b"',
            id="a mount",
        ),
        pytest.param(
            NOTHING.with_net_device("eth0", "net0"),
            NOTHING.with_net_device("eth0", "net1"),
            'host interface eth0: device gpu-0 (request gpu) sets name="net0", '
            'device gpu-1 (request gpu) sets name="net1"',
            id="a host interface with two names",
        ),
        pytest.param(
            NOTHING.with_net_device("eth0", "net0"),
            NOTHING.with_net_device("eth1", "net0"),
            'container interface net0: device gpu-0 (request gpu) sets host_interface_name="eth0", '
            'device gpu-1 (request gpu) sets host_interface_name="eth1"',
            id="two host interfaces of one name",
        ),
        pytest.param(
            NOTHING.with_intel_rdt(clos_id="gold"),
            NOTHING.with_intel_rdt(schemata=["L3:0=f"]),
            'Intel RDT: device gpu-0 (request gpu) sets clos_id="gold" schemata=[], '
            'device gpu-1 (request gpu) sets clos_id="" schemata=["L3:0=f"]',
            id="Intel RDT, of which a runtime keeps one",
        ),
    ],
)
def test_two_devices_that_want_different_things_are_both_named_with_what_they_want(
    first: ContainerEdits, second: ContainerEdits, conflict: str
) -> None:
    assert _conflicts(first, second) == (conflict,)


def test_one_device_can_conflict_with_itself() -> None:
    (conflict,) = _conflicts(NOTHING.with_mount("/a", "/m").with_mount("/b", "/m"))
    assert conflict.startswith("mount at /m: device gpu-0 (request gpu) sets")


def test_requests_for_containers_of_their_own_may_differ_from_each_other_and_from_nothing_else() -> None:
    def build(*devices: tuple[str, str, bool]) -> ClaimSpec:
        return build_spec(
            DRIVER,
            UID,
            [
                _device(NOTHING.with_env("RANK", rank), f"gpu-{index}", request=request, own_container=own)
                for index, (request, rank, own) in enumerate(devices)
            ],
        )

    spec = json.loads(build(("one", "0", True), ("two", "1", True)).content or b"")
    assert [device["containerEdits"]["env"] for device in spec["devices"]] == [["RANK=0"], ["RANK=1"]]
    for others in ([("one", "1", True)], [("all", "1", False)], [("two", "1", True), ("all", "0", False)]):
        with pytest.raises(EditConflict, match="environment variable RANK"):
            build(("one", "0", True), *others)


def test_a_third_device_conflicts_with_the_first_that_set_the_value() -> None:
    one, other = NOTHING.with_env("X", "1"), NOTHING.with_env("X", "2")
    (conflict,) = _conflicts(one, one, other)
    assert "gpu-0 (request gpu) sets" in conflict
    assert "gpu-2 (request gpu) sets" in conflict


def test_a_long_value_is_shown_in_part() -> None:
    (conflict,) = _conflicts(NOTHING.with_env("X", "y" * 5000), NOTHING.with_env("X", ""))
    assert len(conflict) < 300


@given(edits=strategies.edits)
def test_two_devices_that_want_the_same_do_not_conflict(edits: ContainerEdits) -> None:
    edits = edits.with_env("SOME", "1")
    assume(not _conflicts(edits))
    assert _conflicts(edits, edits) == ()


def test_what_all_devices_share_is_written_once() -> None:
    common = NOTHING.with_env("LIB", "1").with_mount("/lib").with_hook("poststop", "/a").with_additional_gids(44)
    spec = _spec(common.with_device_node("/dev/a"), common.with_device_node("/dev/b"))
    assert sorted(spec["containerEdits"]) == ["additionalGids", "env", "hooks", "mounts"]
    assert [one["containerEdits"] for one in spec["devices"]] == [
        {"deviceNodes": [{"path": "/dev/a"}]},
        {"deviceNodes": [{"path": "/dev/b"}]},
    ]


def test_hooks_are_shared_only_as_far_as_their_order_allows() -> None:
    def hooks(edits: dict[str, Any]) -> list[str]:
        return [one["path"] for one in edits.get("hooks", [])]

    spec = _spec(_hooks("links", "own", "cache"), _hooks("links", "cache"))
    assert hooks(spec["containerEdits"]) == ["/links"]
    assert [hooks(one["containerEdits"]) for one in spec["devices"]] == [["/own", "/cache"], ["/cache"]]


def test_a_device_that_shares_everything_keeps_its_own_except_for_hooks() -> None:
    common = NOTHING.with_env("LIB", "1").with_hook("poststop", "/a")
    spec = _spec(common, common.with_device_node("/dev/b"))
    assert sorted(spec["containerEdits"]) == ["env", "hooks"]
    assert [one["containerEdits"] for one in spec["devices"]] == [
        {"env": ["LIB=1"]},
        {"deviceNodes": [{"path": "/dev/b"}]},
    ]


def test_devices_with_nothing_but_the_same_hooks_share_nothing() -> None:
    spec = _spec(_hooks("a"), _hooks("a"))
    assert "containerEdits" not in spec
    assert len([one["containerEdits"]["hooks"] for one in spec["devices"]]) == 2


def test_what_says_nothing_is_left_out() -> None:
    node = DeviceNode(path="/dev/a", host_path="/dev/a", optional=True)
    edits = replace(_hooks("a", "a"), device_nodes=(node, node), additional_gids=(5, 0, 5))
    (device,) = _spec(edits)["devices"]
    assert device["containerEdits"] == {
        "deviceNodes": [{"path": "/dev/a"}],
        "hooks": [{"hookName": "createContainer", "path": "/a"}],
        "additionalGids": [5],
    }


@given(several=st.lists(strategies.edits, min_size=1, max_size=3))
def test_a_container_with_one_device_gets_all_that_was_asked_for_it(several: list[ContainerEdits]) -> None:
    several = [edits.with_additional_gids(7) for edits in several]
    assume(not _conflicts(*several))
    spec = _spec(*several)
    for edits, device in zip(several, spec["devices"], strict=True):
        parts = [spec.get("containerEdits", {}), device["containerEdits"]]
        assert {one for part in parts for one in part.get("env", [])} == {f"{k}={v}" for k, v in edits.env.items()}
        for field, wanted in (
            ("deviceNodes", {node.path for node in edits.device_nodes}),
            ("mounts", {mount.container_path for mount in edits.mounts}),
            ("netDevices", {one.name for one in edits.net_devices}),
        ):
            name = {"mounts": "containerPath", "netDevices": "name"}.get(field, "path")
            assert {one[name] for part in parts for one in part.get(field, [])} == wanted
        hooks = [one["path"] for part in parts for one in part.get("hooks", [])]
        assert hooks == [hook.path for hook in dict.fromkeys(edits.hooks)]
        assert {gid for part in parts for gid in part.get("additionalGids", [])} == {*edits.additional_gids} - {0}


@given(edits=strategies.edits, data=st.data())
def test_the_bytes_do_not_depend_on_order(edits: ContainerEdits, data: st.DataObject) -> None:
    edits = edits.with_additional_gids(7)
    assume(not _conflicts(edits))
    shuffled = replace(
        edits,
        env=dict(data.draw(st.permutations(list(edits.env.items())))),
        device_nodes=tuple(data.draw(st.permutations(edits.device_nodes))),
        mounts=tuple(data.draw(st.permutations(edits.mounts))),
        net_devices=tuple(data.draw(st.permutations(edits.net_devices))),
        additional_gids=tuple(data.draw(st.permutations(edits.additional_gids))),
    )
    devices = [_device(edits), _device(edits, "gpu-1")]
    turned = [_device(shuffled, "gpu-1"), _device(shuffled)]
    assert build_spec(DRIVER, UID, devices).content == build_spec(DRIVER, UID, turned).content


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
        pytest.param(
            NOTHING.with_additional_gids(5).with_device_node("/a", host_path="/b"), "0.7.0", id="whatever comes last"
        ),
    ],
)
def test_the_lowest_version_that_has_the_feature_is_chosen(edits: ContainerEdits, version: str) -> None:
    assert _spec(edits)["cdiVersion"] == version
    assert _spec(edits, NOTHING.with_env("OWN", "1"))["cdiVersion"] == version


def test_a_device_name_with_a_leading_digit_needs_a_later_version() -> None:
    assert _spec(NOTHING.with_env("A", "1"), uid="1a")["cdiVersion"] == "0.5.0"


def _hooks(*names: str) -> ContainerEdits:
    return ContainerEdits(hooks=tuple(Hook(hook_name="createContainer", path=f"/{name}") for name in names))
