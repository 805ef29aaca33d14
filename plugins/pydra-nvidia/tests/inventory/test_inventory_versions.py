"""NVIDIA's versions as semantic ones."""

from __future__ import annotations

import pytest

from pydra import Device, Version
from pydra.inventory.api_rules import check_device
from pydra_nvidia.inventory.attributes import cuda_version, parse_version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("580.105.08", "580.105.8"),
        ("565.57.01", "565.57.1"),
        ("575.00", "575.0.0"),
        ("9.0", "9.0.0"),
        ("12", "12.0.0"),
        ("v550.54.14", "550.54.14"),
        ("550.054.014-grid", "550.54.14"),
        ("535.161.08.1", "535.161.8"),
        (" 580.65.06\n", "580.65.6"),
    ],
)
def test_a_version_has_three_numbers_without_leading_zeros(text: str, version: str) -> None:
    assert parse_version(text) == Version(version)
    assert list(check_device(Device(name="a", attributes={"version": Version(version)}))) == []


@pytest.mark.parametrize("text", ["", "unknown", "-1"])
def test_what_is_no_version_is_none(text: str) -> None:
    assert parse_version(text) is None


@pytest.mark.parametrize(("number", "version"), [(13000, "13.0.0"), (12080, "12.8.0"), (12020, "12.2.0")])
def test_cuda_counts_in_thousands_and_tens(number: int, version: str) -> None:
    assert cuda_version(number) == Version(version)
