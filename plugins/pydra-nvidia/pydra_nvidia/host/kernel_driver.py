"""What the kernel driver shows in /proc: its version, GPUs and the instances of MIG."""

from __future__ import annotations

import re

from pydra_pci import Tree

CAPABILITIES = "driver/nvidia/capabilities"
_VERSION = re.compile(r"\b\d{3}\.\d+(?:\.\d+)?\b")


def read_module_version(tree: Tree) -> str:
    """The version of the NVIDIA module that is loaded (`580.105.08`); empty when none is.

    Source: /proc/driver/nvidia/version, whose first line is NVRM's, in two wordings (open and closed module).
    """
    text = tree.read(tree.proc("driver/nvidia/version"))
    found = _VERSION.search(text.partition("\n")[0])
    return found[0] if found else ""


def is_excluded(tree: Tree, address: str) -> bool:
    """Whether the admin has excluded the GPU at this PCI address (the module's parameter NVreg_ExcludedGpus)."""
    return read_gpu_information(tree, address).get("GPU Excluded") == "Yes"


def read_gpu_information(tree: Tree, address: str) -> dict[str, str]:
    """What the driver reports about the GPU at this address, as `Model`, `Device Minor`; empty without it."""
    text = tree.read(tree.proc(f"driver/nvidia/gpus/{address}/information"))
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def list_instances(tree: Tree) -> tuple[tuple[str, tuple[tuple[str, tuple[str, ...]], ...]], ...]:
    """GPU, GPU instance and compute instance directories: what changes when somebody creates or destroys one."""
    root = tree.proc(CAPABILITIES)
    return tuple(
        (gpu, tuple((gi, tree.names(f"{root}/{gpu}/mig/{gi}")) for gi in tree.names(f"{root}/{gpu}/mig")))
        for gpu in tree.names(root)
        if gpu.startswith("gpu")
    )
