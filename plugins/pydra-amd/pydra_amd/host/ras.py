"""RAS of a GPU: its errors, and the pages of memory that are out of use.

Source: the kernel's Documentation/gpu/amdgpu/ras.rst, and drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydra_amd.host.amdgpu import BOUND
from pydra_pci import Tree

XGMI = "xgmi_wafl"
"""The block whose errors are those of xGMI links."""

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
