"""What is decided from what the host has and lacks."""

from __future__ import annotations

import stat

import pytest

from pydra.cdi.edits import ContainerEdits
from pydra.cdi.host_path_checks import HostFile, drop_absent
from pydra.claim import PreparedDevice
from pydra.errors import HostPathMissing

NOTHING = ContainerEdits()
CHARACTER, BLOCK, FIFO, FILE = (kind | 0o600 for kind in (stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFREG))
ABSENT = "no such file or directory"


def _device(edits: ContainerEdits) -> PreparedDevice:
    return PreparedDevice(request="gpu", pool="node-a", device="gpu-0", edits=edits)


def _drop_absent(edits: ContainerEdits, found: dict[str, int | str]) -> tuple[PreparedDevice, ...]:
    """Of a host with files of these modes, and without those for which there is a reason."""
    files = {path: one if isinstance(one, str) else HostFile(one, path) for path, one in found.items()}
    return drop_absent([_device(edits)], files)


@pytest.mark.parametrize(
    ("edits", "found"),
    [
        pytest.param(NOTHING.with_device_node("/dev/a"), {"/dev/a": CHARACTER}, id="a node"),
        pytest.param(NOTHING.with_device_node("/dev/x", host_path="/dev/a"), {"/dev/a": BLOCK}, id="another host path"),
        pytest.param(NOTHING.with_device_node("/dev/a", type="u", major=1), {}, id="unbuffered"),
        pytest.param(NOTHING.with_device_node("/dev/a", type="p"), {"/dev/a": FIFO}, id="a named pipe"),
        pytest.param(NOTHING.with_device_node("/dev/a", type="c", major=1, minor=3), {}, id="made by the runtime"),
        pytest.param(NOTHING.with_mount("/lib"), {"/lib": FILE}, id="a mount"),
        pytest.param(NOTHING.with_mount("tmpfs", "/tmp", type="tmpfs"), {}, id="a mount of no host path"),
        pytest.param(NOTHING.with_env("A", "1"), {}, id="no paths"),
    ],
)
def test_what_the_host_has_stays(edits: ContainerEdits, found: dict[str, int | str]) -> None:
    assert _drop_absent(edits, found) == (_device(edits),)


@pytest.mark.parametrize(
    ("edits", "found", "problem"),
    [
        pytest.param(
            NOTHING.with_device_node("/dev/a"),
            {"/dev/a": ABSENT},
            "the node has no device node /dev/a (no such file or directory)",
            id="node absent",
        ),
        pytest.param(
            NOTHING.with_device_node("/dev/a"), {"/dev/a": FILE}, "/dev/a on the node is not a device node", id="a file"
        ),
        pytest.param(
            NOTHING.with_device_node("/dev/a", type="b"),
            {"/dev/a": CHARACTER},
            "/dev/a on the node is a device node of another type than 'b'",
            id="another type",
        ),
        pytest.param(
            NOTHING.with_device_node("/dev/a", type="u"),
            {"/dev/a": CHARACTER},
            "/dev/a on the node is a device node of another type than 'u'",
            id="unbuffered, which the runtime does not tell apart",
        ),
        pytest.param(
            NOTHING.with_device_node("/dev/a", type="c", major=0, minor=3),
            {"/dev/a": ABSENT},
            "the node has no device node /dev/a (no such file or directory)",
            id="a major of 0 is none for the runtime",
        ),
        pytest.param(
            NOTHING.with_device_node("/dev/a", major=1),
            {"/dev/a": ABSENT},
            "the node has no device node /dev/a (no such file or directory)",
            id="a major without a type is not enough for the runtime",
        ),
        pytest.param(
            NOTHING.with_mount("/lib"),
            {"/lib": "permission denied"},
            "the node has no /lib (permission denied)",
            id="mount absent",
        ),
    ],
)
def test_what_the_host_lacks_is_named_with_its_device(
    edits: ContainerEdits, found: dict[str, int | str], problem: str
) -> None:
    with pytest.raises(HostPathMissing) as caught:
        _drop_absent(edits, found)
    assert caught.value.missing == (f"{problem}, which device gpu-0 (request gpu) needs",)
    assert caught.value.retryable


def test_all_that_is_missing_is_reported_at_once() -> None:
    edits = NOTHING.with_device_node("/dev/a").with_device_node("/dev/b").with_mount("/c")
    with pytest.raises(HostPathMissing) as caught:
        _drop_absent(edits, {"/dev/a": ABSENT, "/dev/b": ABSENT, "/c": ABSENT})
    assert len(caught.value.missing) == 3


def test_what_is_optional_is_left_out_when_absent_and_kept_when_there() -> None:
    edits = (
        NOTHING.with_device_node("/dev/a", optional=True)
        .with_device_node("/dev/b", optional=True)
        .with_mount("/c", optional=True)
        .with_mount("/d", optional=True)
    )
    found: dict[str, int | str] = {"/dev/a": ABSENT, "/dev/b": CHARACTER, "/c": ABSENT, "/d": FILE}
    expected = NOTHING.with_device_node("/dev/b", optional=True).with_mount("/d", optional=True)
    assert _drop_absent(edits, found) == (_device(expected),)
