"""RAS of a GPU: its errors, and the pages of memory that are out of use.

Source: the kernel's Documentation/gpu/amdgpu/ras.rst, and amdgpu_ras.c and amdgpu_ras_eeprom.c in
drivers/gpu/drm/amd/amdgpu.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydra_amd.hardware_types import Gpu
from pydra_amd.host.amdgpu import BOUND
from pydra_amd.models import GFX90A, GFX942, GFX950
from pydra_pci import Tree

XGMI = "xgmi_wafl"
"""The block whose errors are those of xGMI links."""

_BYTES_PER_BAD_PAGE = 100 << 20
"""RAS_BAD_PAGE_COVER."""
_RESERVED = {GFX90A: 128, GFX942: 128, GFX950: 128}
"""16 pages for each of the eight rows of memory that replace others (amdgpu_ras_init_reserved_vram_size)."""
_TWICE_RESERVED = ["13", "0", "14"]
"""The version of the block MP0 of GPUs that have 16 such rows."""

_ERROR_FILE = "_err_count"
_KINDS = {"ue": "uncorrectable", "ce": "correctable", "de": "deferred"}


def read_errors(tree: Tree, address: str) -> Mapping[str, Mapping[str, int]]:
    """Errors since the driver was loaded, by block (`umc`) and kind (`uncorrectable`, `correctable`, `deferred`).

    Empty for a GPU that counts none; a block is missing while the driver does not let it be asked, as during a reset.
    """
    folder = tree.sys(f"{BOUND}/{address}/ras")
    found: dict[str, Mapping[str, int]] = {}
    for name in tree.names(folder):
        if name.endswith(_ERROR_FILE):
            lines = re.findall(r"^(ue|ce|de): (\d+)$", tree.read(f"{folder}/{name}"), re.MULTILINE)
            if lines:
                found[name.removesuffix(_ERROR_FILE)] = {_KINDS[kind]: int(count) for kind, count in lines}
    return found


def read_bad_pages(tree: Tree, address: str) -> int | None:
    """How many pages of memory are out of use, or will be; None for a GPU that does not report it."""
    path = tree.sys(f"{BOUND}/{address}/ras/gpu_vram_bad_pages")
    return len(tree.read(path).splitlines()) if tree.exists(path) else None


def read_bad_page_limit(tree: Tree, gpu: Gpu) -> int:
    """How many pages may be out of use before the driver says that the GPU is to be replaced; 0 if that is not known.

    So amdgpu_ras_validate_threshold decides since Linux 6.15; before, it was by the size of the memory for all GPUs.
    """
    chosen = tree.read(tree.sys("module/amdgpu/parameters/bad_page_threshold"))
    threshold = gpu.memory // _BYTES_PER_BAD_PAGE
    if chosen.isdecimal() and int(chosen):
        threshold = int(chosen)
    elif chosen != "-2" and gpu.gfx in _RESERVED:
        block = tree.sys(f"{BOUND}/{gpu.address}/ip_discovery/die/0/MP0/0")
        version = [tree.read(f"{block}/{name}") for name in ("major", "minor", "revision")]
        threshold = _RESERVED[gpu.gfx] * (2 if version == _TWICE_RESERVED else 1)
    return max(threshold - 1, 0)
