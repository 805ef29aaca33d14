"""Looking up what edits take from the host, on this machine and below a root that stands for a host."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from pydra.cdi.edits import ContainerEdits
from pydra.cdi.host_path_checks import HostFile, resolve
from pydra.claim import PreparedDevice
from pydra.errors import ClaimError, HostPathMissing

NOTHING = ContainerEdits()


def _device(edits: ContainerEdits) -> PreparedDevice:
    return PreparedDevice(request="gpu", pool="node-a", device="gpu-0", edits=edits)


async def test_what_this_machine_has_is_found(tmp_path: Path) -> None:
    edits = NOTHING.with_device_node("/dev/null", type="c").with_mount(str(tmp_path)).with_env("A", "1")
    assert await resolve([_device(edits)]) == (_device(edits),)


async def test_what_it_lacks_is_named(tmp_path: Path) -> None:
    edits = NOTHING.with_device_node("/dev/no-such-thing").with_mount(str(tmp_path / "absent"))
    with pytest.raises(HostPathMissing) as caught:
        await resolve([_device(edits)])
    assert len(caught.value.missing) == 2
    assert "the node has no device node /dev/no-such-thing (no such file or directory)" in caught.value.missing[0]


async def test_what_is_optional_and_absent_is_left_out(tmp_path: Path) -> None:
    edits = NOTHING.with_device_node("/dev/null").with_device_node("/dev/no-such-thing", optional=True)
    expected = NOTHING.with_device_node("/dev/null")
    assert await resolve([_device(edits)]) == (_device(expected),)


async def test_a_file_is_not_a_device_node(tmp_path: Path) -> None:
    (tmp_path / "acme0").touch()
    with pytest.raises(HostPathMissing, match="is not a device node"):
        await resolve([_device(NOTHING.with_device_node(str(tmp_path / "acme0")))])


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/dev/../dev/./acme0", id="with dots"),
        pytest.param("/../../dev/acme0", id="above the root is the root"),
        pytest.param("/dev/relative", id="a relative link"),
        pytest.param("/dev/absolute", id="an absolute link, which stays below the root"),
        pytest.param("/run/dev/acme0", id="a link to a directory"),
    ],
)
async def test_a_runtime_gets_the_node_that_a_path_leads_to_below_the_hosts_root(tmp_path: Path, path: str) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "dev" / "acme0")
    (tmp_path / "dev" / "relative").symlink_to("acme0")
    (tmp_path / "dev" / "absolute").symlink_to("/dev/acme0")
    (tmp_path / "run" / "dev").symlink_to("/dev")
    device, resolved = (
        _device(NOTHING.with_device_node(path, type="p", host_path=host_path)) for host_path in ("", "/dev/acme0")
    )
    assert await resolve([device], root=str(tmp_path)) == (resolved,)
    assert await resolve([resolved], root=str(tmp_path)) == (resolved,)


async def test_no_link_leads_out_of_the_root(tmp_path: Path) -> None:
    (tmp_path / "outside").touch()
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(HostPathMissing, match="no such file or directory"):
        await resolve([_device(NOTHING.with_mount("/link"))], root=str(root))


async def test_links_in_a_circle_are_given_up(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(HostPathMissing, match="too many"):
        await resolve([_device(NOTHING.with_mount("/a"))], root=str(tmp_path))


async def test_a_path_with_a_nul_byte_is_absent() -> None:
    with pytest.raises(HostPathMissing, match="null"):
        await resolve([_device(NOTHING.with_mount("/a\0b"))])


async def test_waiting_for_a_host_that_does_not_answer_ends() -> None:
    with pytest.raises(ClaimError, match="timed out after 0 s looking up /proc on the node; a mounted"):
        await resolve([_device(NOTHING.with_mount("/proc"))], deadline=0)


async def test_a_host_that_hangs_holds_one_thread_however_often_it_is_asked() -> None:
    answers, asked = threading.Event(), []

    def look_up(paths: Sequence[str], root: str) -> dict[str, HostFile]:
        asked.append(paths)
        answers.wait(10)
        return {path: HostFile(stat.S_IFDIR, path) for path in paths}

    devices = [_device(NOTHING.with_mount("/mnt/dead"))]
    try:
        for _ in range(3):
            with pytest.raises(ClaimError, match="looking up /mnt/dead on the node; a mounted file system may hang"):
                await resolve(devices, deadline=0.05, look_up=look_up)
        assert asked == [["/mnt/dead"]]
    finally:
        answers.set()
    with anyio.fail_after(30):
        while True:
            with suppress(ClaimError):
                await resolve(devices, deadline=0.05, look_up=look_up)
                break


def test_nodes_in_dev_are_looked_up_without_awaiting() -> None:
    device = _device(NOTHING.with_device_node("/dev/null").with_env("A", "1"))
    with pytest.raises(StopIteration) as returned:
        resolve([device]).send(None)
    assert returned.value.value == (device,)


async def test_a_link_in_dev_is_followed_where_waiting_has_an_end(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "gpu").symlink_to("/elsewhere/gpu")
    edits = NOTHING.with_device_node("/dev/gpu")
    with pytest.raises(ClaimError, match="timed out after 0 s"):
        await resolve([_device(edits)], root=str(tmp_path), deadline=0)
    with pytest.raises(HostPathMissing, match="/dev/gpu"):
        await resolve([_device(edits)], root=str(tmp_path))
