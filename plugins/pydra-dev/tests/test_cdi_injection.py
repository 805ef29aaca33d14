"""Injecting CDI devices into an OCI configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from pydra_dev.container_runtime.cdi_injection import (
    InjectionError,
    OciDevice,
    OciSpec,
    apply_edits,
    inject_devices,
    stat_host_node,
)
from pydra_dev.container_runtime.cdi_specs import (
    Device,
    DeviceNode,
    Edits,
    Hook,
    IntelRdt,
    Mount,
    Registry,
    Resolved,
    Spec,
)
from pydra_dev.output.descriptions import describe_changes

NODES = {
    "/dev/gpu0": OciDevice(path="/dev/gpu0", type="c", major=195, minor=0, file_mode=0o666),
    "/dev/disk": OciDevice(path="/dev/disk", type="b", major=8, minor=1, file_mode=0o660),
}


def stat_node(path: str) -> OciDevice:
    if path == "/etc/passwd":
        raise ValueError(f"{path} is not a device node")
    try:
        return NODES[path]
    except KeyError:
        raise FileNotFoundError(f"no {path}") from None


def registry(*specs: Spec, errors: dict[str, str] | None = None) -> Registry:
    devices = {
        f"{spec.kind}={device.name}": Resolved(file=f"{number}.json", spec=spec, device=device)
        for number, spec in enumerate(specs)
        for device in spec.devices
    }
    return Registry(devices=devices, errors=errors or {})


def spec(*devices: Device, edits: Edits = Edits(), kind: str = "v.com/c") -> Spec:  # noqa: B008 - frozen
    return Spec(cdi_version="1.1.0", kind=kind, devices=devices, container_edits=edits)


def env(*variables: str) -> Edits:
    return Edits(env=variables)


def node(**fields: object) -> Edits:
    return Edits(device_nodes=(DeviceNode(**fields),))  # type: ignore[arg-type]


def test_a_variable_replaces_the_one_of_the_same_name_and_others_are_appended() -> None:
    before = OciSpec(env=("A=1", "B=2"))
    assert apply_edits(before, env("B=3", "C=4"), stat_node).env == ("A=1", "B=3", "C=4")


def test_the_edits_of_a_spec_come_once_and_before_those_of_its_devices() -> None:
    found = registry(
        spec(
            Device(name="a", container_edits=env("SEEN=device")),
            Device(name="b", container_edits=Edits(hooks=(Hook(hook_name="poststop", path="/b"),))),
            edits=Edits(env=("SEEN=spec",), hooks=(Hook(hook_name="prestart", path="/spec"),)),
        )
    )
    after = inject_devices(OciSpec(), ["v.com/c=a", "v.com/c=b"], found, stat_node)
    assert after.env == ("SEEN=device",)
    assert [hook.path for hook in after.hooks] == ["/spec", "/b"]


def test_a_variable_that_two_devices_set_has_the_last_value_and_the_other_one_is_told() -> None:
    found = registry(
        spec(Device(name="a", container_edits=env("SLOT=0", "SAME=1")), edits=env("SLOT=of the file")),
        spec(Device(name="b", container_edits=env("SLOT=1", "SAME=1"))),
    )
    after = inject_devices(OciSpec(), ["v.com/c=a", "v.com/c=b"], found, stat_node)
    told = "SLOT=1 (instead of SLOT=0 of v.com/c=a; claims have no fixed order)"
    assert describe_changes(OciSpec(), after) == (f"env      {told}", "env      SAME=1")


def test_an_unresolvable_device_fails_the_container_and_the_reason_is_named() -> None:
    found = registry(spec(Device(name="a", container_edits=env("A=1"))), errors={"x.json": "invalid"})
    with pytest.raises(InjectionError, match=r"unresolvable CDI devices v.com/c=b \(x.json: invalid\)"):
        inject_devices(OciSpec(), ["v.com/c=a", "v.com/c=b"], found, stat_node)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"path": "/dev/gpu0"}, ("c", 195, 0, 0o666, "rwm")),
        ({"path": "/dev/x", "host_path": "/dev/gpu0"}, ("c", 195, 0, 0o666, "rwm")),
        ({"path": "/dev/disk", "permissions": "r"}, ("b", 8, 1, 0o660, "r")),
        ({"path": "/dev/gpu0", "permissions": "none"}, ("c", 195, 0, 0o666, "")),
        ({"path": "/dev/gpu0", "file_mode": 0o600}, ("c", 195, 0, 0o600, "rwm")),
        ({"path": "/dev/none", "type": "c", "major": 1, "minor": 2}, ("c", 1, 2, None, "rwm")),
        ({"path": "/dev/fifo", "type": "p"}, ("p", 0, 0, None, "rwm")),
    ],
    ids=["from path", "from host path", "permissions", "no access", "file mode", "fully given", "fifo"],
)
def test_what_a_device_node_leaves_open_comes_from_the_host(fields: dict[str, object], expected: object) -> None:
    (device,) = apply_edits(OciSpec(), node(**fields), stat_node).devices
    assert (device.type, device.major, device.minor, device.file_mode, device.access) == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"path": "/dev/none"}, "cannot use /dev/none of the host: no /dev/none"),
        ({"path": "/dev/none", "type": "c"}, "cannot use /dev/none"),
        ({"path": "/etc/passwd"}, "is not a device node"),
        ({"path": "/dev/gpu0", "type": "b"}, "type is b, that of /dev/gpu0 is c"),
    ],
)
def test_a_device_node_that_the_host_lacks_or_has_otherwise_fails(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InjectionError, match=message):
        apply_edits(OciSpec(), node(**fields), stat_node)


def test_a_device_node_replaces_the_one_at_its_path() -> None:
    once = apply_edits(OciSpec(), node(path="/dev/x", host_path="/dev/gpu0"), stat_node)
    twice = apply_edits(once, node(path="/dev/x", host_path="/dev/disk"), stat_node)
    assert [device.type for device in twice.devices] == ["b"]


@pytest.mark.parametrize(("user", "given", "expected"), [(0, None, None), (7, None, 7), (7, 9, 9)])
def test_a_device_node_belongs_to_the_containers_user_unless_it_says(
    user: int, given: int | None, expected: int | None
) -> None:
    oci = OciSpec(uid=user, gid=user)
    (device,) = apply_edits(oci, node(path="/dev/gpu0", uid=given, gid=given), stat_node).devices
    assert (device.uid, device.gid) == (expected, expected)


def test_mounts_replace_by_destination_and_parents_come_first() -> None:
    before = OciSpec(
        mounts=(Mount(host_path="/old", container_path="/a/b"), Mount(host_path="/p", container_path="/p"))
    )
    edits = Edits(
        mounts=(
            Mount(host_path="/deep", container_path="/a/b/c"),
            Mount(host_path="/new", container_path="/a/b"),
            Mount(host_path="/top", container_path="/a"),
        )
    )
    after = apply_edits(before, edits, stat_node)
    assert [mount.container_path for mount in after.mounts] == ["/p", "/a", "/a/b", "/a/b/c"]
    assert {mount.container_path: mount.host_path for mount in after.mounts}["/a/b"] == "/new"


def test_groups_are_added_once_and_zero_is_nothing_and_the_last_rdt_wins() -> None:
    first = Edits(additional_gids=(0, 5), intel_rdt=IntelRdt(clos_id="a"))
    second = Edits(additional_gids=(5, 6), intel_rdt=IntelRdt(clos_id="b"))
    after = apply_edits(apply_edits(OciSpec(additional_gids=(5,)), first, stat_node), second, stat_node)
    assert after.additional_gids == (5, 6)
    assert after.intel_rdt == IntelRdt(clos_id="b")


def test_the_hosts_own_nodes_are_read_and_no_link_is_followed(tmp_path: Path) -> None:
    assert stat_host_node("/dev/null").type == "c"
    (tmp_path / "link").symlink_to("/dev/null")
    for path in ("/", str(tmp_path / "link")):
        with pytest.raises(ValueError, match="not a device node"):
            stat_host_node(path)
