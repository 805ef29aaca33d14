"""The numbers of capabilities."""

from __future__ import annotations

import pytest

from pydra_nvidia.simulation.tree.kernel_driver_files import compute_minor, instance_minor


@pytest.mark.parametrize(
    ("gpu", "instance", "compute", "minors"),
    [(0, 0, 0, (3, 4)), (0, 1, 0, (12, 13)), (1, 0, 0, (138, 139)), (31, 14, 7, (4314, 4322))],
)
def test_capabilities_have_the_numbers_that_the_kernel_gives(
    gpu: int, instance: int, compute: int, minors: tuple[int, int]
) -> None:
    assert (instance_minor(gpu, instance), compute_minor(gpu, instance, compute)) == minors
