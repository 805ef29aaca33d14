"""Which PCI functions are NVIDIA's GPUs, and what their products are called."""

from __future__ import annotations

from pathlib import Path

from pydra_nvidia.host.product_names import PciIds
from pydra_pci import Roots, Tree


def tree(tmp_path: Path) -> Tree:
    return Tree(Roots(host=str(tmp_path)))


PCI_IDS = """\
# a comment
10dd  Evans & Sutherland
	1e30  Not this one
10de  NVIDIA Corporation
	1e30  TU102GL [Quadro RTX 6000/8000]
		10de 129e  Quadro RTX 8000
# a comment between
	2330  An old name
10df  Emulex Corporation
	1e36  Nor this one
"""


def test_a_device_that_is_not_known_here_is_called_what_the_hosts_list_says(tmp_path: Path) -> None:
    names = PciIds(tree(tmp_path))
    assert names.name("0x1e30") == ""
    lists = tmp_path / "usr/share/hwdata"
    lists.mkdir(parents=True)
    (lists / "pci.ids").write_text(PCI_IDS)
    found = [names.name(device) for device in ("0x1e30", "0x1e36", "0x129e")]
    assert found == ["TU102GL [Quadro RTX 6000/8000]", "", ""]
    (lists / "pci.ids").write_text(PCI_IDS.replace("TU102GL", "Renamed"))
    assert names.name("0x1e30") == "Renamed [Quadro RTX 6000/8000]"


def test_a_data_centre_gpu_has_the_same_name_whatever_list_the_host_has(tmp_path: Path) -> None:
    names = PciIds(tree(tmp_path))
    assert (names.name("0x2330"), names.name("0x2901")) == ("GH100 [H100 SXM5 80GB]", "GB100 [B200]")
    lists = tmp_path / "usr/share/misc"
    lists.mkdir(parents=True)
    (lists / "pci.ids").write_text(PCI_IDS)
    assert names.name("0x2330") == "GH100 [H100 SXM5 80GB]"
