"""NVML's answers as values, from libraries below the unmodified pynvml that have a few symbols each."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pynvml
import pytest

from gpu_values import gpu
from nvml_libraries import answer, nvml
from pydra_nvidia.hardware_types import Architecture, Condition, Gpu, NvLinks, Placement
from pydra_nvidia.nvml.errors import Code, NvmlError
from pydra_nvidia.nvml.gpus import parse_bus_id, read_condition, read_driver, read_facts, read_monitored
from pydra_nvidia.nvml.mig_state import Offer, derive_name, read_mode, read_offer, read_resetless
from pydra_nvidia.nvml.nvlink import read_link_errors
from pydra_nvidia.nvml.pynvml_library import Nvml, load_pynvml, read_fields, use_library

H100 = 85520809984
HANDLE = ctypes.c_void_p(0x10)
CLUSTER = "8c0b4c5e-66ac-4a1e-9c26-8d5f3f7d3a10"


@pytest.fixture(autouse=True)
def _library_as_before() -> Iterator[None]:
    before = pynvml.nvmlLib
    yield
    use_library(pynvml, before)


def number(value: int) -> Callable[..., int]:
    def put(*arguments: Any) -> int:
        arguments[-1]._obj.value = value
        return 0

    return put


def text(value: bytes) -> Callable[..., int]:
    def put(*arguments: Any) -> int:
        next(one for one in arguments if hasattr(one, "raw")).value = value
        return 0

    return put


def test_a_library_that_is_not_there_is_an_error_with_the_linkers_words() -> None:
    with pytest.raises(NvmlError, match=r"dlopen for /proc/nowhere/libnvidia-ml.so.1: .*LIBRARY_NOT_FOUND") as caught:
        load_pynvml("/proc/nowhere/libnvidia-ml.so.1")
    assert caught.value.code == Code.LIBRARY_NOT_FOUND


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        ("nvmlDeviceCreateGpuInstanceWithPlacement", "the GPU has no room for it"),
        ("nvmlGpuInstanceCreateComputeInstance", "the GPU has no room for it"),
        ("nvmlEventSetCreate", "the driver has run out of a resource other than memory"),
        ("nvmlInitWithFlags", "the driver has run out of a resource other than memory"),
    ],
)
def test_insufficient_resources_are_room_only_where_something_is_created(call: str, advice: str) -> None:
    message = str(NvmlError(Code.INSUFFICIENT_RESOURCES, call))
    assert message.startswith(f"{call} failed with NVML_ERROR_INSUFFICIENT_RESOURCES (23): {advice}")


def test_loading_again_takes_the_library_that_is_there_then() -> None:
    nvml(nvmlSystemGetCudaDriverVersion=number(12000)).call("nvmlSystemGetCudaDriverVersion")
    module = load_pynvml("libc.so.6")  # no NVML, and the function of the library before is forgotten
    assert isinstance(module.nvmlLib, ctypes.CDLL)
    with pytest.raises(NvmlError) as caught:
        Nvml(module).call("nvmlSystemGetCudaDriverVersion")
    assert caught.value.code == Code.FUNCTION_NOT_FOUND


def test_a_function_that_the_installed_pynvml_lacks_is_as_one_that_the_driver_lacks() -> None:
    assert nvml().ask("nvmlDeviceGetSomethingOfTomorrow", HANDLE) is None


def test_a_text_that_the_hardware_garbled_costs_that_field_only() -> None:
    assert nvml(nvmlDeviceGetSerial=text(b"\xff\xfe")).look("nvmlDeviceGetSerial", HANDLE) is None


@pytest.mark.parametrize("code", [Code.GPU_IS_LOST, Code.RESET_REQUIRED, Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED])
def test_a_lost_gpu_or_session_is_never_taken_for_a_missing_field(code: Code) -> None:
    with pytest.raises(NvmlError):
        nvml(nvmlDeviceGetBrand=answer(code)).look("nvmlDeviceGetBrand", HANDLE)


@pytest.mark.parametrize(
    ("bus_id", "address"),
    [
        ("00000000:53:00.0", "0000:53:00.0"),
        ("0000000A:E3:00.0", "000a:e3:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("0008:01:00.0", "0008:01:00.0"),
    ],
)
def test_an_address_is_spelt_as_in_sysfs(bus_id: str, address: str) -> None:
    assert parse_bus_id(bus_id) == address


def pci(*arguments: Any) -> int:
    arguments[-1]._obj.busId = b"00000000:53:00.0"
    return 0


def test_an_old_driver_leaves_fields_out_and_the_gpu_in() -> None:
    library = nvml(
        nvmlDeviceGetPciInfo_v3=pci,
        nvmlDeviceGetMinorNumber=number(4),
        nvmlDeviceGetName=text(b"NVIDIA H100 80GB HBM3"),
        nvmlDeviceGetMemoryInfo=answer(Code.NOT_SUPPORTED),
        nvmlDeviceGetBrand=answer(Code.UNKNOWN),
    )
    assert read_facts(library, HANDLE, index=2, uuid="GPU-1") == Gpu(
        index=2,
        minor=4,
        uuid="GPU-1",
        name="NVIDIA H100 80GB HBM3",
        brand=0,
        architecture=Architecture.UNKNOWN,
        compute=(0, 0),
        pci="0000:53:00.0",
        memory=None,
    )


def test_what_nothing_can_be_done_without_is_an_error() -> None:
    library = nvml(nvmlDeviceGetPciInfo_v3=pci, nvmlDeviceGetMinorNumber=answer(Code.UNKNOWN))
    with pytest.raises(NvmlError, match="nvmlDeviceGetMinorNumber for GPU-1"):
        read_facts(library, HANDLE, index=0, uuid="GPU-1")


def test_two_gpus_do_not_share_the_module_id_of_one() -> None:
    ids = iter([3, 5])

    def module(_handle: Any, reference: Any) -> int:
        reference._obj.value = next(ids)
        return 0

    library = nvml(
        nvmlDeviceGetPciInfo_v3=pci,
        nvmlDeviceGetMinorNumber=number(0),
        nvmlDeviceGetName=text(b"x"),
        nvmlDeviceGetModuleId=module,
    )
    first = read_facts(library, HANDLE, index=0, uuid="GPU-1")
    second = read_facts(library, HANDLE, index=1, uuid="GPU-2")
    assert (first.module, second.module) == (3, 5)


def test_the_drivers_version_is_needed_and_cudas_is_not() -> None:
    assert read_driver(nvml(nvmlSystemGetDriverVersion=text(b"535.54.03"))).cuda == 0
    with pytest.raises(NvmlError):
        read_driver(nvml())


@pytest.mark.parametrize(
    ("kind", "member", "value"),
    [
        (0, "dVal", 1.5),
        (1, "uiVal", 2**32 - 1),
        (2, "ulVal", 7),
        (3, "ullVal", 2**40),
        (4, "sllVal", -5),
        (5, "siVal", -3),
        (6, "usVal", 9),
    ],
)
def test_a_field_is_read_by_its_own_type(kind: int, member: str, value: float) -> None:
    def values(_handle: Any, _count: Any, reference: Any) -> int:
        told, refused, strange = reference._obj
        told.valueType = kind
        setattr(told.value, member, value)
        refused.nvmlReturn = Code.NOT_SUPPORTED
        strange.valueType = 99
        return 0

    assert read_fields(nvml(nvmlDeviceGetFieldValues=values), HANDLE, (230, (161, 3), 184)) == (value, None, None)


def test_fields_that_fail_as_a_whole_are_all_unknown() -> None:
    assert read_fields(nvml(nvmlDeviceGetFieldValues=answer(Code.INVALID_ARGUMENT)), HANDLE, (1, 2)) == (None, None)
    assert read_fields(nvml(), HANDLE, ()) == ()


def test_a_gpu_that_cannot_be_partitioned_has_no_mode() -> None:
    assert read_mode(nvml(nvmlDeviceGetMigMode=answer(Code.NOT_SUPPORTED)), HANDLE, subject="") is None


def test_a_mode_that_cannot_be_read_is_not_taken_for_none() -> None:
    with pytest.raises(NvmlError):
        read_mode(nvml(nvmlDeviceGetMigMode=answer(Code.TIMEOUT)), HANDLE, subject="")


@pytest.mark.parametrize(
    ("architecture", "resetless"),
    [
        (Architecture.AMPERE, False),
        (Architecture.HOPPER, True),
        (Architecture.BLACKWELL, True),
        (Architecture.UNKNOWN, False),
    ],
)
def test_a_driver_that_does_not_tell_of_resets_is_judged_by_the_generation(architecture: int, resetless: bool) -> None:
    assert read_resetless(nvml(), HANDLE, architecture, subject="") is resetless


@pytest.mark.parametrize(
    ("number_", "slices", "memory_mib", "memory", "name"),
    [
        (0x0, 1, 9984, H100, "1g.10gb"),
        (0x7, 1, 9984, H100, "1g.10gb+me"),
        (0x9, 1, 20096, H100, "1g.20gb"),
        (0x2, 3, 40448, H100, "3g.40gb"),
        (0x4, 7, 81152, H100, "7g.80gb"),
        (0x2, 3, 71424, 150754820096, "3g.71gb"),  # H200: half of 141 is 70.5, which goes up
        (0x0, 1, 4864, 42949672960, "1g.5gb"),
        (0xC, 4, 97251, 102641958912, "4g.96gb+gfx"),
        (0xD, 1, 24192, 102641958912, "1g.24gb-me"),
        (0xF, 1, 24192, 102641958912, "1g.24gb+me.all"),
        (0x0, 1, 9984, 0, "1g.10gb"),
    ],
)
def test_a_profiles_name_is_derived_where_the_driver_does_not_tell_it(
    number_: int, slices: int, memory_mib: int, memory: int, name: str
) -> None:
    assert derive_name(number_, slices, memory_mib, memory) == name


def test_an_old_drivers_profiles_come_without_the_second_version() -> None:
    def info(_handle: Any, profile: int, reference: Any) -> int:
        if profile != 7:
            return int(Code.NOT_SUPPORTED if profile % 2 else Code.INVALID_ARGUMENT)
        one = reference._obj
        one.id, one.sliceCount, one.instanceCount, one.memorySizeMB = 20, 1, 1, 9984
        return 0

    def placements(_handle: Any, _profile: int, places: Any, count: Any) -> int:
        count._obj.value = 2
        if places is not None:
            places[0].start, places[0].size, places[1].start, places[1].size = 4, 1, 2, 1
        return 0

    offer = read_offer(
        nvml(
            nvmlDeviceGetGpuInstanceProfileInfo=info,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2=placements,
        ),
        HANDLE,
        H100,
        subject="",
    )
    (profile,) = offer.profiles
    assert (profile.id, profile.name, profile.placements) == (20, "1g.10gb+me", (Placement(2, 1), Placement(4, 1)))


def test_profiles_that_cannot_be_placed_are_not_offered() -> None:
    def info(_handle: Any, profile: int, reference: Any) -> int:
        reference._obj.id = profile
        return 0

    library = nvml(nvmlDeviceGetGpuInstanceProfileInfoV=info, nvmlDeviceGetGpuInstancePossiblePlacements_v2=number(0))
    offer = read_offer(library, HANDLE, H100, subject="")
    assert offer.profiles == ()
    assert len(offer.kinds) == 18


def of_one_profile(refusal: Code) -> Offer:
    """What can be on a GPU of one profile, whose places NVML refuses to tell."""

    def info(_handle: Any, profile: int, reference: Any) -> int:
        one = reference._obj
        one.id, one.sliceCount, one.instanceCount, one.memorySizeMB = 20, 1, 1, 9984
        return int(Code.SUCCESS if profile == 7 else Code.NOT_SUPPORTED)

    library = nvml(
        nvmlDeviceGetGpuInstanceProfileInfo=info,
        nvmlDeviceGetGpuInstancePossiblePlacements_v2=lambda *_: int(refusal),
    )
    return read_offer(library, HANDLE, H100, subject="GPU-a")


@pytest.mark.parametrize("code", [Code.NO_PERMISSION, Code.INVALID_ARGUMENT, Code.NOT_SUPPORTED, Code.UNKNOWN])
def test_a_profile_whose_places_are_not_reported_is_known_without_them(code: Code) -> None:
    offer = of_one_profile(code)
    assert [(one.id, one.name, one.placements) for one in offer.profiles] == [(20, "1g.10gb+me", ())]
    assert offer.unreported.startswith(
        f"nvmlDeviceGetGpuInstancePossiblePlacements for GPU-a failed with NVML_ERROR_{code.name}"
    )


def test_a_gpu_that_is_lost_while_its_places_are_read_is_lost() -> None:
    with pytest.raises(NvmlError) as caught:
        of_one_profile(Code.GPU_IS_LOST)
    assert caught.value.code == Code.GPU_IS_LOST


@pytest.mark.parametrize(("code", "passing"), [(Code.UNKNOWN, True), (Code.TIMEOUT, True), (Code.NO_PERMISSION, False)])
def test_a_refusal_that_may_be_over_the_next_time_is_distinguished_from_one_that_stays(
    code: Code, passing: bool
) -> None:
    assert (of_one_profile(code).failure is not None) is passing


def test_a_condition_of_which_nothing_is_reported_is_empty() -> None:
    assert read_condition(nvml(), HANDLE, monitored=False, subject="") == Condition(monitored=False)
    assert read_monitored(nvml(), HANDLE, subject="") is False
    assert read_monitored(nvml(nvmlDeviceGetSupportedEventTypes=number(0x7)), HANDLE, subject="") is False
    assert read_monitored(nvml(nvmlDeviceGetSupportedEventTypes=number(0x9)), HANDLE, subject="") is True


def test_errors_of_links_are_summed_by_kind_where_the_generation_keeps_them() -> None:
    def counter(_handle: Any, link: int, kind: int, reference: Any) -> int:
        reference._obj.value = 10 * link + kind
        return 0 if kind < 4 else int(Code.NOT_SUPPORTED)

    def values(_handle: Any, _count: Any, reference: Any) -> int:
        for one in reference._obj:
            one.valueType, one.value.ullVal = 3, one.scopeId + 1
            one.nvmlReturn = 0 if one.fieldId == 161 else int(Code.NOT_SUPPORTED)
        return 0

    library = nvml(nvmlDeviceGetNvLinkErrorCounter=counter, nvmlDeviceGetFieldValues=values)
    hopper = Gpu(**{**_fields(gpu(0, "01")), "links": NvLinks(total=3, up=3)})
    ampere = Gpu(**{**_fields(hopper), "architecture": Architecture.AMPERE})
    assert read_link_errors(library, HANDLE, hopper) == {"replay": 6}
    assert read_link_errors(library, HANDLE, ampere) == {"replay": 30, "recovery": 33, "crc_flit": 36, "crc_data": 39}
    assert read_link_errors(library, HANDLE, gpu(0, "01")) == {}


def _fields(one: Gpu) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__struct_fields__}
