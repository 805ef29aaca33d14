"""What the story says of a container's changes, in few lines however many there are."""

from __future__ import annotations

import pytest

from pydra_dev.cdi_specs import Hook, IntelRdt, Mount, NetDevice
from pydra_dev.demo import describe_changes, shorten
from pydra_dev.oci import OciDevice, OciSpec


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
        "mount    40 in /usr/lib from /root/lib (ro): 0.so, 1.so, 2.so, and 37 more",
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
        pytest.param(tuple("abcdefgh"), "a b c d e f ... and 2 more arguments", id="many"),
    ],
)
def test_a_hook_is_told_with_its_first_arguments(arguments: tuple[str, ...], said: str) -> None:
    hook = Hook(hook_name="prestart", path="/bin/hook", args=arguments)
    assert describe_changes(OciSpec(), OciSpec(hooks=(hook,))) == (f"hook     prestart {said}",)


def test_long_lists_are_cut_at_every_depth_and_all_else_stays() -> None:
    long = list(range(50))
    assert shorten({"a": [{"b": long, "c": None}], "d": "text", "e": long[:6]}) == {
        "a": [{"b": [0, 1, 2, "... and 47 more"], "c": None}],
        "d": "text",
        "e": [0, 1, 2, 3, 4, 5],
    }
