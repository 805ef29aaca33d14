"""Which driver a function gets for passthrough, and how it is loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra_pci.vfio_drivers import (
    Alias,
    DriverUnavailable,
    VfioDrivers,
    choose_driver,
    find_driver,
    is_same,
    modprobe_in,
    parse_aliases,
    require_driver,
)

GB200 = "pci:v000010DEd00002941sv000010DEsd00002046bc03sc02i00"
H100 = "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00"
ANY = "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci"
GRACE = "alias vfio_pci:v000010DEd00002941sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci"
BOARD = "alias vfio_pci:v000010DEd00002941sv000010DEsd00002046bc*sc*i* board_vfio_pci"
NOISE = "# Extracted from the modules.\nalias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia\nalias vfio_pci:junk x\n"


@pytest.mark.parametrize(
    ("aliases", "modalias", "driver"),
    [
        pytest.param([], GB200, "vfio-pci", id="no aliases"),
        pytest.param([ANY], GB200, "vfio-pci", id="vfio-pci itself is for all"),
        pytest.param([ANY, GRACE], GB200, "nvgrace_gpu_vfio_pci", id="a variant for it"),
        pytest.param([GRACE, ANY], GB200, "nvgrace_gpu_vfio_pci", id="in whatever order"),
        pytest.param([GRACE, ANY], H100, "vfio-pci", id="a variant for others"),
        pytest.param([GRACE], H100, "vfio-pci", id="nothing fits"),
        pytest.param([ANY, GRACE, BOARD], GB200, "board_vfio_pci", id="the most exact"),
        pytest.param(
            [GRACE, GRACE.replace("nvgrace", "later")], GB200, "nvgrace_gpu_vfio_pci", id="the first of equals"
        ),
        pytest.param([GRACE], "", "vfio-pci", id="no modalias"),
        pytest.param([GRACE], "usb:v1D6Bp0002", "vfio-pci", id="not of PCI"),
        pytest.param([GRACE.replace("00002941", "0000294*")], GB200, "vfio-pci", id="a field is whole or anything"),
    ],
)
def test_the_variant_that_says_most_about_the_function_is_chosen(
    aliases: list[str], modalias: str, driver: str
) -> None:
    assert choose_driver(modalias, parse_aliases(NOISE + "\n".join(aliases) + "\n")) == driver


@given(st.lists(st.lists(st.booleans(), min_size=7, max_size=7), max_size=6))
def test_no_fitting_alias_says_more_than_the_chosen_one(wild: list[list[bool]]) -> None:
    ids = ("000010DE", "00002941", "000010DE", "00002046", "03", "02", "00")
    aliases = [
        Alias(tuple("*" if any_ else own for any_, own in zip(row, ids, strict=True)), f"m{number}_vfio_pci")
        for number, row in enumerate(wild)
    ]
    chosen = choose_driver(GB200, aliases)
    fewest = min((sum(row) for row in wild), default=None)
    first = next((alias.module for alias, row in zip(aliases, wild, strict=True) if sum(row) == fewest), "vfio-pci")
    assert chosen == first


def test_the_running_kernels_list_counts_and_is_read_again_when_it_changes(node: Any) -> None:
    drivers = VfioDrivers(node.tree)
    assert drivers.choose(GB200) == "vfio-pci"  # no list at all
    node.put("host/lib/modules/5.15.0/modules.alias", f"{GRACE}\n")
    assert drivers.choose(GB200) == "vfio-pci"  # another kernel's
    node.put("host/lib/modules/6.8.0/modules.alias", f"{GRACE}\n")
    assert drivers.choose(GB200) == "nvgrace_gpu_vfio_pci"
    node.put("host/lib/modules/6.8.0/modules.alias", f"{GRACE}\n{BOARD}\n")
    assert drivers.choose(GB200) == "board_vfio_pci"


@pytest.mark.parametrize(
    ("driver", "other", "same"),
    [("vfio-pci", "vfio_pci", True), ("nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci", True), ("nvidia", "", False)],
)
def test_dashes_and_underscores_do_not_tell_drivers_apart(driver: str, other: str, same: bool) -> None:
    assert is_same(driver, other) is same


async def test_a_driver_is_spelt_as_the_kernel_does_and_loaded_when_it_is_not(node: Any) -> None:
    asked: list[str] = []

    async def load(module: str) -> None:
        asked.append(module)
        node.kernel.load(module.replace("_", "-"))

    assert find_driver(node.tree, "vfio_pci") == "vfio-pci"
    assert await require_driver(node.tree, "vfio-pci", load) == "vfio-pci"
    assert asked == []
    assert await require_driver(node.tree, "nvgrace_gpu_vfio_pci", load) == "nvgrace-gpu-vfio-pci"
    assert asked == ["nvgrace_gpu_vfio_pci"]


async def test_a_module_that_brings_no_driver_is_told(node: Any) -> None:
    async def load(_module: str) -> None:
        return

    with pytest.raises(DriverUnavailable, match="brings no PCI driver"):
        await require_driver(node.tree, "nvgrace_gpu_vfio_pci", load)


def program(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


async def test_modules_are_loaded_with_the_nodes_own_modprobe(programs: Path, tmp_path: Path) -> None:
    program(programs, "modprobe", f'echo "$@" > {tmp_path}/told')
    await modprobe_in("/")("vfio-pci")
    assert (tmp_path / "told").read_text() == "vfio-pci\n"
    program(programs, "chroot", f'echo "$@" > {tmp_path}/told')
    await modprobe_in("/host")("vfio-pci")
    assert (tmp_path / "told").read_text() == "/host modprobe vfio-pci\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo 'FATAL: Module vfio-pci not found.' >&2; exit 1", "ended with 1: FATAL: Module vfio-pci not found."),
        ("exit 3", "ended with 3: it says nothing"),
        ("exec sleep 600", "did not end within 0.2 s"),
    ],
)
async def test_a_module_that_cannot_be_loaded_is_told_with_what_to_do(programs: Path, text: str, words: str) -> None:
    program(programs, "modprobe", text)
    with pytest.raises(DriverUnavailable) as caught:
        await modprobe_in("/", seconds=0.2 if "sleep" in text else 15.0)("vfio-pci")
    assert words in str(caught.value)
    assert "/etc/modules-load.d" in str(caught.value)


async def test_a_node_without_modprobe_is_told(programs: Path) -> None:
    (programs / "chroot").mkdir()  # found, and not to be run
    with pytest.raises(DriverUnavailable, match="loading it failed: chroot /proc/nowhere modprobe vfio-pci"):
        await modprobe_in("/proc/nowhere")("vfio-pci")
