"""What NVIDIA's installation has: empty libraries, the numbers of capabilities."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pydra_nvidia.simulation.tree.device_numbers import compute_minor, instance_minor
from pydra_nvidia.simulation.tree.elf_libraries import AARCH64, X86_64, build_library


@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="no libraries are made for this processor")
def test_an_empty_library_is_loaded_and_preloaded_by_the_real_loader(tmp_path: Path) -> None:
    path = tmp_path / "libnvidia-ml.so.1"
    path.write_bytes(build_library(path.name, X86_64 if os.uname().machine == "x86_64" else AARCH64))
    assert ctypes.CDLL(str(path))._handle
    ran = subprocess.run(
        [sys.executable, "-c", "print(open('/proc/self/maps').read())"],
        env={**os.environ, "LD_PRELOAD": str(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (str(path) in ran.stdout, ran.stderr) == (True, "")


@pytest.mark.parametrize(
    ("gpu", "instance", "compute", "minors"),
    [(0, 0, 0, (3, 4)), (0, 1, 0, (12, 13)), (1, 0, 0, (138, 139)), (31, 14, 7, (4314, 4322))],
)
def test_capabilities_have_the_numbers_that_the_kernel_gives(
    gpu: int, instance: int, compute: int, minors: tuple[int, int]
) -> None:
    assert (instance_minor(gpu, instance), compute_minor(gpu, instance, compute)) == minors
