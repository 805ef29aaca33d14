"""Whatever the kernel's files and AMD's checkpoint hold: what is unreadable is left out, and nothing else is lost."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydra import PydraError
from pydra_amd.amdsmi.links_and_throttling import GpuReading
from pydra_amd.devices import list_offered
from pydra_amd.hardware_reader import read_machine, read_signature
from pydra_amd.host.amdgpu import read_memory_modes
from pydra_amd.host.kfd import read_processes
from pydra_amd.host.ras import read_bad_pages, read_errors
from pydra_amd.samples import read_samples
from pydra_amd.settings import Partitioning
from pydra_amd.simulation.machine_types import MACHINE_TYPES
from pydra_amd.simulation.tree import write_files
from pydra_amd.takeover import FILE, inherit_claims
from pydra_pci import Roots, Tree
from tests.fuzz.damage import damage

MACHINE = MACHINE_TYPES["mi300x-2"]
PAGE = 4096
"""What an attribute of sysfs has at most."""
HELD = {"request_names": ["r"], "pool_name": "n", "device_name": "gpu-1-128"}
CHECKPOINT = json.dumps({"checksum": 1, "v1": {"preparedClaims": {"u": [HELD]}}}).encode()


@pytest.fixture(scope="module")
def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("machine") / "tree"
    write_files(str(root), MACHINE)
    return root


def tree_of(root: Path) -> Tree:
    return Tree(Roots(sys=f"{root}/sys", dev=f"{root}/dev", proc=f"{root}/proc"))


@pytest.mark.fuzz
@settings(deadline=None)  # the machine may be slow
@given(data=st.data())
def test_whatever_a_file_of_the_kernel_holds_the_machine_is_read(
    root: Path, files: list[Path], data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(files))
    before = path.read_bytes()
    path.write_bytes(data.draw(damage(before))[:PAGE])
    try:
        tree = tree_of(root)
        reading = read_machine(tree)
        for mode in Partitioning:
            list_offered(reading, mode)
        read_signature(tree)
        read_processes(tree)
        for address in MACHINE.addresses:
            for read in (read_errors, read_bad_pages, read_memory_modes):
                read(tree, address)
        for gpu in reading.gpus:
            list(read_samples(tree, gpu, GpuReading()))
    finally:
        path.write_bytes(before)


@pytest.mark.fuzz
@settings(deadline=None)  # the machine may be slow
@given(data=st.data())
def test_whatever_a_checkpoint_holds_is_taken_over_or_refused(root: Path, data: st.DataObject) -> None:
    (root / FILE).write_bytes(data.draw(damage(CHECKPOINT)))
    tree = tree_of(root)
    with suppress(PydraError):
        anyio.run(inherit_claims, str(root), read_machine(tree), tree)
