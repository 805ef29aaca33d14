"""The fluent way to build container edits."""

from __future__ import annotations

from pydra.cdi.edits import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice


def test_each_method_returns_a_new_value_and_leaves_the_old_one_alone() -> None:
    base = ContainerEdits().with_env("A", "1")
    more = base.with_env("B", "2").with_device_node("/dev/acme0")
    assert base == ContainerEdits(env={"A": "1"})
    assert more == ContainerEdits(env={"A": "1", "B": "2"}, device_nodes=(DeviceNode(path="/dev/acme0"),))


def test_a_variable_set_twice_has_the_later_value() -> None:
    assert ContainerEdits().with_env("A", "1").with_env("A", "2").env == {"A": "2"}


def test_a_mount_is_seen_at_the_same_path_unless_another_is_given() -> None:
    edits = ContainerEdits().with_mount("/opt/lib").with_mount("/opt/bin", "/usr/bin/acme", options=["rbind"])
    assert edits.mounts == (
        Mount(host_path="/opt/lib", container_path="/opt/lib", options=("ro", "nosuid", "nodev", "bind")),
        Mount(host_path="/opt/bin", container_path="/usr/bin/acme", options=("rbind",)),
    )


def test_every_field_of_every_part_can_be_given() -> None:
    edits = (
        ContainerEdits()
        .with_device_node(
            "/dev/a",
            host_path="/dev/b",
            type="c",
            major=1,
            minor=3,
            file_mode=0o666,
            permissions="rw",
            uid=1,
            gid=2,
            optional=True,
        )
        .with_mount("/a", "/b", type="bind", optional=True)
        .with_hook("createContainer", "/bin/hook", args=["hook", "x"], env=["A=1"], timeout=5)
        .with_net_device("eth1", "net0")
        .with_intel_rdt(clos_id="c", l3_cache_schema="l", mem_bw_schema="m", schemata=["s"], enable_monitoring=True)
        .with_additional_gids(44, 110)
        .with_additional_gids(7)
    )
    assert edits == ContainerEdits(
        device_nodes=(
            DeviceNode(
                path="/dev/a",
                host_path="/dev/b",
                type="c",
                major=1,
                minor=3,
                file_mode=0o666,
                permissions="rw",
                uid=1,
                gid=2,
                optional=True,
            ),
        ),
        mounts=(Mount(host_path="/a", container_path="/b", type="bind", optional=True),),
        hooks=(Hook(hook_name="createContainer", path="/bin/hook", args=("hook", "x"), env=("A=1",), timeout=5),),
        net_devices=(NetDevice(host_interface_name="eth1", name="net0"),),
        intel_rdt=IntelRdt(
            clos_id="c", l3_cache_schema="l", mem_bw_schema="m", schemata=("s",), enable_monitoring=True
        ),
        additional_gids=(44, 110, 7),
    )
