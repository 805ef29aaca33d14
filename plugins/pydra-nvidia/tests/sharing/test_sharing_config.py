"""What claims may configure, as pydra's own decoder, which the webhook uses too, takes and refuses it."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from pydra.backends.claim_config import find_config_problems
from pydra_nvidia.claim_config import (
    CONFIG_TYPES,
    GpuConfig,
    GpuSharing,
    Iommu,
    MigDeviceConfig,
    MigDeviceSharing,
    MpsConfig,
    TimeSlicingConfig,
    VfioDeviceConfig,
    check_config,
)
from pydra_nvidia.settings import Settings

GROUP = "resource.nvidia.com/v1beta1"


def problems_of(kind: str, **fields: Any) -> tuple[str, ...]:
    return find_config_problems({"apiVersion": GROUP, "kind": kind, **fields}, CONFIG_TYPES)


@pytest.mark.parametrize(
    ("kind", "fields", "wanted"),
    [
        ("GpuConfig", {}, GpuConfig()),
        ("GpuConfig", {"sharing": None}, GpuConfig()),
        (
            "GpuConfig",
            {"sharing": {"strategy": "TimeSlicing"}},
            GpuConfig(sharing=GpuSharing(strategy="TimeSlicing")),
        ),
        (
            "GpuConfig",
            {"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}},
            GpuConfig(
                sharing=GpuSharing(strategy="TimeSlicing", time_slicing_config=TimeSlicingConfig(interval="Long"))
            ),
        ),
        (
            "GpuConfig",
            {"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {}}},
            GpuConfig(sharing=GpuSharing(strategy="TimeSlicing", time_slicing_config=TimeSlicingConfig())),
        ),
        (
            "GpuConfig",
            {
                "sharing": {
                    "strategy": "MPS",
                    "mpsConfig": {
                        "defaultActiveThreadPercentage": 50,
                        "defaultPinnedDeviceMemoryLimit": "10Gi",
                        "defaultPerDevicePinnedMemoryLimit": {"0": "5Gi", "GPU-1": 1048576},
                        "multiUser": True,
                    },
                }
            },
            GpuConfig(
                sharing=GpuSharing(
                    strategy="MPS",
                    mps_config=MpsConfig(
                        default_active_thread_percentage=50,
                        default_pinned_device_memory_limit="10Gi",
                        default_per_device_pinned_memory_limit={"0": "5Gi", "GPU-1": 1048576},
                        multi_user=True,
                    ),
                )
            ),
        ),
        (
            "MigDeviceConfig",
            {"sharing": {"strategy": "TimeSlicing"}},
            MigDeviceConfig(sharing=MigDeviceSharing(strategy="TimeSlicing")),
        ),
        (
            "MigDeviceConfig",
            {"sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 0}}},
            MigDeviceConfig(
                sharing=MigDeviceSharing(strategy="MPS", mps_config=MpsConfig(default_active_thread_percentage=0))
            ),
        ),
        ("VfioDeviceConfig", {}, VfioDeviceConfig()),
        (
            "VfioDeviceConfig",
            {"iommu": {"backendPolicy": "PreferIommuFD", "enableAPIDevice": True}},
            VfioDeviceConfig(iommu=Iommu(backend_policy="PreferIommuFD", enable_api_device=True)),
        ),
        ("VfioDeviceConfig", {"iommu": {}}, VfioDeviceConfig(iommu=Iommu(backend_policy="LegacyOnly"))),
    ],
    ids=str,
)
def test_the_vendors_configs_are_read(kind: str, fields: dict[str, Any], wanted: object) -> None:
    assert problems_of(kind, **fields) == ()
    assert msgspec.convert(fields, CONFIG_TYPES[f"{GROUP}/{kind}"]) == wanted


def mps(**fields: Any) -> dict[str, Any]:
    return {"strategy": "MPS", "mpsConfig": fields}


@pytest.mark.parametrize(
    ("kind", "fields", "wanted"),
    [
        (
            "GpuConfig",
            {"sharing": {"strategy": "Mps"}},
            ('$.sharing.strategy: found "Mps", allowed: "MPS", "TimeSlicing"',),
        ),
        ("GpuConfig", {"sharing": {}}, ('$.sharing.strategy: missing, allowed: "MPS", "TimeSlicing"',)),
        (
            "GpuConfig",
            {"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Tiny"}}},
            ('$.sharing.timeSlicingConfig.interval: found "Tiny", allowed: "Default", "Long", "Medium", "Short"',),
        ),
        (
            "GpuConfig",
            {"sharing": {"strategy": "TimeSlicing", "timeslicingConfig": {}}},
            (
                '$.sharing.timeslicingConfig: unknown field (did you mean "timeSlicingConfig"?),'
                " allowed: mpsConfig, strategy, timeSlicingConfig",
            ),
        ),
        (
            "GpuConfig",
            {"sharing": {"strategy": "TimeSlicing", "mpsConfig": {}}},
            ('$: sharing.mpsConfig: only for strategy "MPS", the strategy here is "TimeSlicing"',),
        ),
        (
            "GpuConfig",
            {"sharing": {"strategy": "MPS", "timeSlicingConfig": {}}},
            ('$: sharing.timeSlicingConfig: only for strategy "TimeSlicing", the strategy here is "MPS"',),
        ),
        (
            "GpuConfig",
            {"sharing": mps(defaultActiveThreadPercentage=101)},
            ("$.sharing.mpsConfig.defaultActiveThreadPercentage: found 101, allowed: an integer >= 0 and <= 100",),
        ),
        (
            "GpuConfig",
            {"sharing": mps(defaultActiveThreadPercentage=-1, multiUser="yes")},
            (
                "$.sharing.mpsConfig.defaultActiveThreadPercentage: found -1, allowed: an integer >= 0 and <= 100",
                '$.sharing.mpsConfig.multiUser: found "yes", allowed: true or false or null',
            ),
        ),
        (
            "MigDeviceConfig",
            {"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}}},
            ('$.sharing.timeSlicingConfig: unknown field (did you mean "mpsConfig"?), allowed: mpsConfig, strategy',),
        ),
        (
            "VfioDeviceConfig",
            {"iommu": {"backendPolicy": "Legacy", "enableApiDevice": True}},
            (
                '$.iommu.enableApiDevice: unknown field (did you mean "enableAPIDevice"?),'
                " allowed: backendPolicy, enableAPIDevice",
                '$.iommu.backendPolicy: found "Legacy", allowed: "LegacyOnly", "PreferIommuFD"',
            ),
        ),
    ],
    ids=str,
)
def test_what_the_vendor_refuses_is_refused_with_what_is_allowed(
    kind: str, fields: dict[str, Any], wanted: tuple[str, ...]
) -> None:
    assert problems_of(kind, **fields) == wanted


@pytest.mark.parametrize("kind", ["GpuConfig", "MigDeviceConfig"])
def test_everything_that_is_wrong_with_limits_is_reported_at_once(kind: str) -> None:
    (problem,) = problems_of(
        kind,
        sharing=mps(
            defaultPinnedDeviceMemoryLimit="512Ki",
            defaultPerDevicePinnedMemoryLimit={"gpu-0": "1Gi", "1": "1Ki", "2": f"{'9' * 4000}e999", "-1": -5},
        ),
    )
    assert problem.removeprefix("$: ").split("; ") == [
        'sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit["gpu-0"]: no device has this name, allowed: the index of a'
        ' device of the claim ("0" is the first), or a UUID ("GPU-..." or "MIG-...")',
        'sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit["-1"]: no device has this name, allowed: the index of a'
        ' device of the claim ("0" is the first), or a UUID ("GPU-..." or "MIG-...")',
        'sharing.mpsConfig.defaultPinnedDeviceMemoryLimit: found "512Ki", allowed: at least 1Mi, as limits are set in'
        " whole MiB",
        'sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit["1"]: found "1Ki", allowed: at least 1Mi, as limits are'
        " set in whole MiB",
        f'sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit["2"]: found "{"9" * 32}", allowed: at most 8Ei',
        'sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit["-1"]: found "-5", allowed: at least 1Mi, as limits are'
        " set in whole MiB",
    ]


def test_a_strategy_with_the_others_config_is_reported_with_what_is_wrong_in_that_config() -> None:
    (problem,) = problems_of(
        "GpuConfig", sharing={"strategy": "TimeSlicing", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "1"}}
    )
    assert "only for strategy" in problem
    assert "at least 1Mi" in problem


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    assert problems_of("GPUConfig") == (
        f'$.kind: found "GPUConfig" (did you mean "GpuConfig"?), allowed (apiVersion/kind): {GROUP}/GpuConfig,'
        f" {GROUP}/MigDeviceConfig, {GROUP}/VfioDeviceConfig",
    )


@pytest.mark.parametrize("kind", ["GpuConfig", "MigDeviceConfig"])
@pytest.mark.parametrize("strategy", ["MPS", "TimeSlicing"])
def test_what_the_settings_switch_off_is_refused_with_who_switches_it_on(kind: str, strategy: str) -> None:
    parameters = {"apiVersion": GROUP, "kind": kind, "sharing": {"strategy": strategy}}
    off = {"MPS": Settings(mps=False), "TimeSlicing": Settings(time_slicing=False)}
    for name, settings in off.items():
        found = find_config_problems(parameters, CONFIG_TYPES, partial(check_config, settings=settings))
        variable = f"PYDRA_NVIDIA_{'MPS' if name == 'MPS' else 'TIME_SLICING'}"
        message = f"which is switched off; the admin can set {variable}=true"
        assert found == ((f'$.sharing.strategy: found "{name}", {message}',) if name == strategy else ())
