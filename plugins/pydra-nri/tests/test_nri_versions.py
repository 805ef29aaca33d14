"""Which version of NRI a runtime has decides about events and updates."""

from __future__ import annotations

import pytest

from pydra_nri.versions import UPDATES_FIXED, read_nri_version


@pytest.mark.parametrize(
    ("stated", "runtime", "release", "version"),
    [
        ("", "containerd", "1.7.24~ds1", (0, 6, 1, 1)),
        ("", "containerd", "v2.1.9", (0, 8, 0, 1)),
        ("", "containerd", "2.2.0", (0, 10, 0, 1)),
        ("", "cri-o", "1.33.4", (0, 9, 0, 1)),
        ("", "cri-o", "1.36.3", (0, 11, 0, 1)),
        ("", "containerd", "unknown", (0,)),
        ("", "another", "2.1.9", (0,)),
        ("v0.12.2", "containerd", "2.4.0", (0, 12, 2, 1)),
        ("(devel)", "containerd", "2.3.1", (0, 12, 0, 1)),
        ("0.0.0-unknown", "containerd", "2.2.1", (0, 11, 0, 1)),
    ],
)
def test_the_version_is_what_the_runtime_says_or_what_its_release_has(
    stated: str, runtime: str, release: str, version: tuple[int, ...]
) -> None:
    assert read_nri_version(stated, runtime, release) == version


@pytest.mark.parametrize(
    ("stated", "fixed"),
    [("v0.12.0", False), ("v0.12.1-0.20260701000000-0123456789ab", False), ("v0.12.1", True), ("v0.13.0-rc.1", True)],
)
def test_updates_are_safe_from_the_release_with_the_correction_on(stated: str, fixed: bool) -> None:
    assert (read_nri_version(stated, "containerd", "2.4.0") >= UPDATES_FIXED) is fixed
