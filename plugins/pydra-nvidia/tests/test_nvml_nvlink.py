"""NVLink and the fabric as NVML tells them, from libraries that have a few symbols each."""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pynvml
import pytest

from nvml_libraries import answer, nvml
from pydra_nvidia.hardware_types import Fabric, NvLinks
from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.nvml.nvlink import Ends, links_of, links_up, read_ends, read_fabric, read_link_states
from pydra_nvidia.nvml.pynvml_library import Nvml, use_library

H100 = 85520809984
HANDLE = ctypes.c_void_p(0x10)
CLUSTER = "8c0b4c5e-66ac-4a1e-9c26-8d5f3f7d3a10"


@pytest.fixture(autouse=True)
def _library_as_before() -> Iterator[None]:
    before = pynvml.nvmlLib
    yield
    use_library(pynvml, before)


def links(states: dict[int, int], kinds: dict[int, int], addresses: dict[int, bytes]) -> Nvml:
    def state(_handle: Any, link: int, reference: Any) -> int:
        reference._obj.value = states.get(link, 0)
        return 0 if link in states else int(Code.INVALID_ARGUMENT)

    def kind(_handle: Any, link: int, reference: Any) -> int:
        reference._obj.value = kinds.get(link, 255)
        return 0 if kinds else int(Code.FUNCTION_NOT_FOUND)

    def remote(_handle: Any, link: int, reference: Any) -> int:
        reference._obj.busId = addresses.get(link, b"")
        return 0 if link in addresses else int(Code.NOT_SUPPORTED)

    return nvml(
        nvmlDeviceGetNvLinkState=state,
        nvmlDeviceGetNvLinkRemoteDeviceType=kind,
        nvmlDeviceGetNvLinkRemotePciInfo_v2=remote,
    )


@pytest.mark.parametrize(
    ("states", "kinds", "addresses", "expected"),
    [
        ({}, {}, {}, None),
        ({0: 0, 1: 0}, {0: 255}, {}, NvLinks(total=2, up=0)),
        ({0: 1, 1: 2, 2: 0}, {0: 2, 1: 2}, {}, NvLinks(total=3, up=2, switched=True)),
        (
            {0: 1, 1: 1},
            {0: 0, 1: 0},
            {0: b"00000000:54:00.0", 1: b"00000000:54:00.0"},
            NvLinks(total=2, up=2, peers=("0000:54:00.0",)),
        ),
        (
            {0: 1, 1: 1},
            {},
            {0: b"00000000:54:00.0", 1: b"00000000:06:00.0"},
            NvLinks(total=2, up=2, peers=("0000:54:00.0",), switched=True),
        ),
    ],
    ids=["no NVLink", "all down", "switches, one asleep", "a bridge", "a driver without types"],
)
def test_links_are_counted_and_followed_to_their_ends(
    states: dict[int, int], kinds: dict[int, int], addresses: dict[int, bytes], expected: NvLinks | None
) -> None:
    library = links(states, kinds, addresses)
    told = read_link_states(library, HANDLE, subject="")
    ends = read_ends(library, HANDLE, links_up(told), {"0000:53:00.0", "0000:54:00.0"}, subject="")
    assert links_of(told, ends) == expected
    assert ends.up == links_up(told)


def fabric(state: int = 3, status: int = 0, cluster: str = CLUSTER, summary: int | None = None) -> Callable[..., int]:
    def put(_handle: Any, reference: Any) -> int:
        info = reference._obj
        version = getattr(info, "version", 1) >> 24
        if summary is None and version == 3:
            return int(Code.ARGUMENT_VERSION_MISMATCH)
        info.state, info.status, info.cliqueId = state, status, 32766
        info.clusterUuid[:] = uuid.UUID(cluster).bytes
        if summary is not None:
            info.healthSummary = summary
        return 0

    return put


JOINED = Fabric(cluster=CLUSTER, clique=32766)


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        ({}, None),
        ({"nvmlDeviceGetGpuFabricInfoV": answer(Code.NOT_SUPPORTED)}, None),
        ({"nvmlDeviceGetGpuFabricInfoV": fabric(summary=1)}, Fabric(cluster=CLUSTER, clique=32766, healthy=True)),
        ({"nvmlDeviceGetGpuFabricInfoV": fabric(summary=2)}, Fabric(cluster=CLUSTER, clique=32766, healthy=False)),
        ({"nvmlDeviceGetGpuFabricInfoV": fabric(summary=0)}, JOINED),
        ({"nvmlDeviceGetGpuFabricInfoV": fabric()}, JOINED),
        ({"nvmlDeviceGetGpuFabricInfo": fabric()}, JOINED),
        ({"nvmlDeviceGetGpuFabricInfoV": fabric(state=2)}, None),
        ({"nvmlDeviceGetGpuFabricInfoV": fabric(status=999)}, None),
        ({"nvmlDeviceGetGpuFabricInfoV": fabric(cluster=str(uuid.UUID(int=0)), summary=1)}, None),
    ],
    ids=[
        "no symbol",
        "not supported",
        "healthy",
        "unhealthy",
        "not reported",
        "second version",
        "first version",
        "joining",
        "failed",
        "this node alone",
    ],
)
def test_the_fabric_is_read_in_each_version_of_its_structure(
    functions: dict[str, Callable[..., int]], expected: Fabric | None
) -> None:
    assert read_fabric(nvml(**functions), HANDLE, subject="") == expected


def test_ends_are_of_no_links_at_first() -> None:
    assert links_of((0, 0), Ends()) == NvLinks(total=2, up=0)
