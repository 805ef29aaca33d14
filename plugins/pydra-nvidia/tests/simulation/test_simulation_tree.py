"""The tree of a simulated machine as it is when it is new: read back with plain calls, and by the backend's readers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pydra_nvidia
from pydra_nvidia.cdi.driver_files import DriverFiles, find_driver_files
from pydra_nvidia.host.device_nodes import read_majors
from pydra_nvidia.host.driver_root import DriverRoot, find_driver_root
from pydra_nvidia.host.file_search import FileSearch
from pydra_nvidia.host.kernel_driver import read_module_version
from pydra_nvidia.host.pci import find_gpus
from pydra_nvidia.settings import Settings, parse_settings
from pydra_nvidia.simulation.machine_store import Machine
from pydra_nvidia.simulation.scenario_file import ScenarioFile
from pydra_nvidia.simulation.tree.sync import TreeSync, build_tree
from pydra_pci import VfioDrivers, read_vfio_host

OpenTree = Callable[..., TreeSync]


@pytest.fixture
def open_tree(tmp_path: Path) -> OpenTree:
    """`open_tree("t4")`, or with a scenario in YAML."""

    def make(scenario: str, name: str = "tree") -> TreeSync:
        if "\n" in scenario:
            (tmp_path / "scenario.yaml").write_text(scenario)
            scenario = str(tmp_path / "scenario.yaml")
        return build_tree(str(tmp_path / name), Machine(ScenarioFile(scenario), str(tmp_path / "machine")))

    return make


def settings_of(sync: TreeSync) -> Settings:
    return parse_settings({}, sync.settings())


def installed(sync: TreeSync) -> tuple[DriverRoot, DriverFiles]:
    root = find_driver_root(sync.tree, settings_of(sync))
    return root, find_driver_files(FileSearch(root), root.version, kernel=read(sync, "proc/sys/kernel/osrelease"))


def read(sync: TreeSync, path: str) -> str:
    return (Path(sync.root) / path).read_text().strip()


def test_a_function_stands_below_its_root_and_bridges(open_tree: OpenTree) -> None:
    sync = open_tree("hgx-h100")
    link = Path(sync.root) / "sys/bus/pci/devices/0000:1b:00.0"
    parts = os.readlink(link).split("/")
    assert parts[:4] == ["..", "..", "..", "devices"]
    assert (parts[4], parts[-1]) == ("pci0000:15", "0000:1b:00.0")
    for bridge in parts[5:-1]:
        assert read(sync, f"sys/bus/pci/devices/{bridge}/class") == "0x060400"
    assert link.resolve() == Path(sync.root, "sys/devices", *parts[4:]).resolve()
    assert {name: (link / name).read_text().strip() for name in ("vendor", "device", "class", "numa_node")} == {
        "vendor": "0x10de",
        "device": "0x2330",
        "class": "0x030200",
        "numa_node": "0",
    }
    assert (link / "modalias").read_text() == "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00\n"
    assert (link / "driver").resolve() == (Path(sync.root) / "sys/bus/pci/drivers/nvidia").resolve()
    assert (link / "driver" / link.name).resolve() == link.resolve()
    group = (link / "iommu_group").resolve()
    assert (group.parent.name, os.listdir(group / "devices")) == ("iommu_groups", [link.name])
    assert len((link / "resource").read_text().splitlines()) == 13


@pytest.mark.parametrize("scenario", ["gb200", "mixed"])
def test_all_links_below_sys_lead_somewhere(open_tree: OpenTree, scenario: str) -> None:
    sync = open_tree(scenario)
    links = [
        Path(folder, name)
        for folder, folders, names in os.walk(f"{sync.root}/sys")
        for name in (*folders, *names)
        if Path(folder, name).is_symlink()
    ]
    assert len(links) > 50
    assert [link for link in links if not link.exists()] == []


def test_the_kernel_driver_shows_itself_and_its_gpus(open_tree: OpenTree) -> None:
    sync = open_tree("t4")
    tree = sync.tree
    assert read_module_version(tree) == "580.105.08"
    majors = read_majors(tree)
    assert majors["nvidia"] == 195
    assert {"nvidia-caps", "nvidia-uvm", "vfio"} <= majors.keys()
    board = next(iter(sync.machine.read().boards.values()))
    lines = read(sync, f"proc/driver/nvidia/gpus/{board.address}/information").splitlines()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    assert (facts["GPU UUID"], facts["Device Minor"]) == (board.uuid, str(board.minor))
    assert "ModifyDeviceFiles: 1" in read(sync, "proc/driver/nvidia/params")
    assert read(sync, "sys/module/nvidia/version") == "580.105.08"
    assert read(sync, "proc/meminfo").startswith("MemTotal:")


@pytest.mark.parametrize(
    ("scenario", "words"),
    [("hgx-b200", "Open Kernel Module for x86_64  580"), ("gb200", "for aarch64  580"), ("t4", "x86_64 Kernel Module")],
)
def test_the_module_says_what_it_is_as_the_real_one_does(open_tree: OpenTree, scenario: str, words: str) -> None:
    assert words in read(open_tree(scenario), "proc/driver/nvidia/version").splitlines()[0]


@pytest.mark.parametrize(
    ("host", "where"),
    [("{}", ""), ("{driverRoot: /run/nvidia/driver}", "/run/nvidia/driver")],
    ids=["on the host", "in a container"],
)
def test_the_installation_is_found_with_paths_of_this_machine(open_tree: OpenTree, host: str, where: str) -> None:
    sync = open_tree(f"host: {host}\ngpus:\n- {{model: h100-80gb}}\n")
    root, found = installed(sync)
    assert (root.host_path, root.version) == (f"{sync.root}{where}", "580.105.08")
    assert len(found.libraries) > 30
    for library in found.libraries:
        assert library.host.startswith(f"{sync.root}{where}/")
        assert os.path.isfile(library.host)
    cuda = next(one for one in found.libraries if one.path.endswith("libcuda.so.580.105.08"))
    assert cuda.names == ("libcuda.so", "libcuda.so.1")
    assert {"nvidia-smi", "nvidia-cuda-mps-control"} <= {os.path.basename(one.path) for one in found.files}
    assert all(os.access(one.host, os.R_OK) for one in found.files)
    assert any(one.path.endswith("580.105.08/gsp_ga10x.bin") for one in found.files)


def test_programs_start_without_a_shell_which_images_lack_unless_pythons_path_is_too_long(
    open_tree: OpenTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, executable, first in (
        ("image", "/usr/local/bin/python3", "#!/usr/local/bin/python3 -IS"),
        ("deep", f"/{'deep/' * 30}python3", "#!/bin/sh"),
    ):
        monkeypatch.setattr(sys, "executable", executable)
        assert read(open_tree("t4", name), "usr/bin/nvidia-smi").splitlines()[0] == first


def test_daemons_of_the_driver_have_their_sockets(open_tree: OpenTree) -> None:
    sockets = {one.path for one in installed(open_tree("hgx-h100"))[1].sockets}
    assert sockets == {"/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket"}


def test_without_an_iommu_there_are_no_groups_and_no_vfio(open_tree: OpenTree) -> None:
    sync = open_tree("host: {iommu: false, iommufd: false}\ngpus:\n- {model: t4}\n")
    vfio = read_vfio_host(sync.tree)
    assert (vfio.iommu, vfio.iommufd) == (False, False)
    assert [function.group for function in find_gpus(sync.tree).functions().values()] == [""]
    assert not os.path.exists(f"{sync.root}/sys/bus/pci/drivers/vfio-pci")


def test_the_kernel_knows_which_driver_passes_a_gpu_through(open_tree: OpenTree) -> None:
    sync = open_tree(
        "host: {vfioVariants: {'v000010DEd00002941sv*sd*bc*sc*i*': nvgrace_gpu_vfio_pci}}\n"
        "gpus:\n- {model: gb200-186gb}\n- {model: t4}\n"
    )
    drivers = VfioDrivers(sync.tree)
    chosen = {one.device: drivers.choose(one.modalias) for one in find_gpus(sync.tree).functions().values()}
    assert chosen == {"0x2941": "nvgrace_gpu_vfio_pci", "0x1eb8": "vfio-pci"}


@pytest.mark.parametrize(("hook", "there"), [("/usr/local/bin/nvidia-cdi-hook", True), ("", False)])
def test_the_hook_is_where_the_scenario_says_or_nowhere(open_tree: OpenTree, hook: str, there: bool) -> None:
    sync = open_tree(f"host: {{cdiHook: '{hook}'}}\ngpus:\n- {{model: t4}}\n")
    assert settings_of(sync).cdi_hook == (f"{sync.root}{hook}" if there else "")
    found = [path for path in Path(sync.root).glob("**/nvidia-cdi-hook") if os.access(path, os.X_OK)]
    assert len(found) == (1 if there else 0)


def test_there_is_no_hook_where_the_nodes_host_lacks_the_python_that_it_needs(
    open_tree: OpenTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYDRA_HOST_ROOT", str(tmp_path))
    sync = open_tree("t4")
    assert settings_of(sync).cdi_hook == ""
    assert list(Path(sync.root).glob("**/nvidia-cdi-hook")) == []


def test_files_of_the_scenario_are_there_too(open_tree: OpenTree) -> None:
    sync = open_tree("host: {files: {/etc/nvidia-imex/nodes.cfg: '10.0.0.1'}}\ngpus:\n- {model: t4}\n")
    assert (Path(sync.root) / "etc/nvidia-imex/nodes.cfg").read_text() == "10.0.0.1"


def test_a_path_of_this_machine_means_the_same_in_the_tree(open_tree: OpenTree) -> None:
    sync = open_tree("t4")
    inside = sync.tree.here(f"{sync.root}/dev/nvidiactl")
    assert inside != f"{sync.root}/dev/nvidiactl"
    assert os.path.samefile(inside, f"{sync.root}/dev/nvidiactl")


def test_a_tree_that_is_there_is_taken_as_it_is_until_somebody_removes_it(open_tree: OpenTree) -> None:
    first = open_tree("hgx-h100")
    library = Path(first.root) / "usr/lib/x86_64-linux-gnu/libcuda.so.1"
    before = {path: os.lstat(path).st_ino for path in Path(first.root).glob("sys/bus/pci/devices/*")}
    library.unlink()  # somebody tries what happens
    second = open_tree("hgx-h100")
    assert not library.exists()
    assert {path: os.lstat(path).st_ino for path in Path(second.root).glob("sys/bus/pci/devices/*")} == before
    shutil.rmtree(first.root)
    open_tree("hgx-h100")
    assert library.exists()


BUILD = (
    "import os, sys\n"
    "from pydra_nvidia.simulation.machine_store import Machine\n"
    "from pydra_nvidia.simulation.scenario_file import ScenarioFile\n"
    "from pydra_nvidia.simulation.tree.sync import build_tree\n"
    "machine = Machine(ScenarioFile('hgx-h100'), sys.argv[1] + '/machine')\n"
    "machine.read()\n"
)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.skipif(
    not all(folder.stat().st_mode & 0o001 for folder in Path(pydra_nvidia.__file__).resolve().parents),
    reason="the scenarios are in a directory that another user cannot enter",
)
def test_who_may_not_make_device_nodes_makes_files_that_stand_for_them() -> None:
    code = f"{BUILD}os.setuid(65534)\nsync = build_tree(sys.argv[1] + '/tree', machine)\n" + (
        "from pydra_nvidia.host.device_nodes import DevRoots\n"
        "dev = DevRoots(sync.tree, (sync.root,))\n"
        "for path in ('/dev/nvidiactl', '/dev/nvidia3', '/dev/dri/card2', '/dev/vfio/vfio'):\n"
        "    print(os.path.isfile(sync.root + path), dev.find(path).numbers)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        os.makedirs(f"{folder}/machine")
        os.chown(f"{folder}/machine", 65534, 65534)
        ran = subprocess.run(
            [sys.executable, "-c", code, folder], capture_output=True, text=True, check=False, timeout=50
        )
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == ["True (195, 255)", "True (195, 3)", "True (226, 2)", "True (10, 196)"]


def test_the_installation_is_not_there_when_the_driver_is_absent(open_tree: OpenTree) -> None:
    sync = open_tree("driver: {state: absent}\ngpus:\n- {model: t4}\n")
    left: list[Any] = [*Path(sync.root).glob("**/libcuda*"), *Path(sync.root).glob("dev/nvidia*")]
    assert left == []
    (function,) = find_gpus(sync.tree).functions().values()
    assert function.driver == ""
