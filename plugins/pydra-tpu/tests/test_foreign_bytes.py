"""Whatever the kernel's files hold: a chip that cannot be read is left out, or lacks what it does not tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra_pci import Roots, Tree
from pydra_tpu.host.pci import read_functions
from pydra_tpu.pci_functions_to_chips import build_chips
from pydra_tpu.simulation.machine_types import MACHINE_TYPES
from pydra_tpu.simulation.tree import write_files
from pydra_tpu.slice_facts.merge import merge_facts
from pydra_tpu.slice_facts.parse import parse_labels, parse_tpu_env
from tests.fuzz.damage import damage

PAGE = 4096
"""What an attribute of sysfs has at most."""
TPU_ENV = b"ACCELERATOR_TYPE: 'v5litepod-8'\nTOPOLOGY: '2x4'\nWORKER_ID: '0'\nWRAP: 'false,false,false'\n"
LABELS = b"cloud.google.com/gke-tpu-accelerator=tpu-v5-lite-podslice,cloud.google.com/gke-tpu-topology=2x4"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("machine") / "tree"
    write_files(str(root), MACHINE_TYPES["v5e-8"])
    return root


@pytest.mark.fuzz
@given(data=st.data())
def test_whatever_is_told_of_the_chips_they_are_read(root: Path, data: st.DataObject) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    path = data.draw(st.sampled_from(files))
    before = path.read_bytes()
    path.write_bytes(data.draw(damage(before))[:PAGE])
    try:
        functions, _ = read_functions(Tree(Roots(sys=f"{root}/sys", dev=f"{root}/dev")))
        text = data.draw(damage(TPU_ENV)).decode(errors="replace")
        labels = data.draw(damage(LABELS)).decode(errors="replace")
        told = [parse_tpu_env(text, "the file"), parse_labels(labels, "the labels")]
        merge_facts(told, build_chips(functions))
    finally:
        path.write_bytes(before)
