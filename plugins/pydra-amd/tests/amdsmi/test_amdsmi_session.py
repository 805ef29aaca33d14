"""AMD's Python library, over a native library that is simulated: what it tells, and what is said when it fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from pydra import UndoLater
from pydra_amd.amdsmi.events import Event
from pydra_amd.amdsmi.library import import_amdsmi
from pydra_amd.amdsmi.session import AmdsmiHangs, AmdsmiSession
from pydra_amd.settings import Settings
from pydra_amd.simulation import library
from pydra_amd.simulation.simulation import open_simulation
from pydra_pci import Tree

ADDRESS = "0000:27:00.0"
COMPUTE = f"bus/pci/drivers/amdgpu/{ADDRESS}/current_compute_partition"


class Node:
    """A simulated machine with a session on it, and the events that it told."""

    def __init__(self, root: Path, scenario: str = "mi300x-2", **options: float) -> None:
        self.tree: Tree = open_simulation(Settings(scenario=scenario, state=str(root)))
        self.told: list[Event | None] = []
        self._woken = threading.Condition()
        self._faults = root / "library"
        importer = partial(library.import_amdsmi, str(root / "tree"), scenario)
        self.session = AmdsmiSession(importer, self._hear, **options)

    def tell(self, name: str, text: str) -> None:
        """What the native library is to do; written at once, since a thread reads it."""
        path = self._faults / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.next")
        draft.write_text(text)
        draft.rename(path)

    def wait_told(self, count: int) -> list[Event | None]:
        with self._woken:
            assert self._woken.wait_for(lambda: len(self.told) >= count, 30)
            return self.told

    def _hear(self, event: Event | None) -> None:
        with self._woken:
            self.told.append(event)
            self._woken.notify_all()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    one = Node(tmp_path)
    yield one
    one.session.close()


def test_links_and_throttling_are_told_by_gpu_and_what_is_not_available_is_left_out(node: Node) -> None:
    node.tell(f"{ADDRESS}/links", "UDUXUUUU")
    node.tell(f"{ADDRESS}/throttled", "7")
    told = node.session.read()
    assert len(told) == 2
    assert told[ADDRESS].links == ("up", "down", "up", "disabled", "up", "up", "up", "up")
    assert told[ADDRESS].throttled == {"power": 0, "socket": 7}


def test_links_are_not_known_where_none_is_up_as_old_libraries_say_in_a_guest(node: Node) -> None:
    node.tell(f"{ADDRESS}/links", "DDDDDDDX")
    assert node.session.read()[ADDRESS].links == ()


def test_a_partitioned_gpu_is_asked_once(tmp_path: Path) -> None:
    one = Node(tmp_path, "mi300x-8-cpx")
    assert len(one.session.read()) == 8
    one.session.close()


def test_events_are_told_with_the_gpu_that_they_are_of(node: Node) -> None:
    node.session.read()
    node.tell(f"{ADDRESS}/events", "GPU_PRE_RESET\nGPU_POST_RESET\n")
    kinds = ("GPU_PRE_RESET", "GPU_POST_RESET")
    assert node.wait_told(2) == [Event(address=ADDRESS, kind=kind) for kind in kinds]


async def test_while_modes_change_nothing_is_open_and_afterwards_handles_are_fresh(node: Node) -> None:
    node.session.read()
    with pytest.raises(OSError, match="busy"):
        node.tree.write(node.tree.sys(COMPUTE), "CPX")
    async with node.session.paused():
        node.tree.write(node.tree.sys(COMPUTE), "CPX")
        assert node.session.read() == {}
    assert node.told == [None]
    assert node.session.read()[ADDRESS].links


async def test_a_call_that_is_cancelled_while_the_library_closes_does_not_keep_it_closed(node: Node) -> None:
    node.session.read()
    pausing = asyncio.create_task(contextlib.AsyncExitStack().enter_async_context(node.session.paused()))
    await asyncio.sleep(0)  # its thread waits for the one that waits for events
    pausing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pausing
    assert node.session.read()[ADDRESS].links


def fail_missing() -> Any:
    raise ModuleNotFoundError(name="amdsmi")


def fail_without_native() -> Any:
    print("Unable to find libamd_smi.so library")  # noqa: T201 - as the package does
    raise KeyError("libamd_smi.so")


@pytest.mark.parametrize(
    ("importer", "words"),
    [
        (fail_missing, "amdsmi is not installed"),
        (fail_without_native, "libamd_smi.so of ROCm is not found: it must be in the linker's path"),
    ],
)
def test_a_library_that_is_not_there_is_told_once_and_looked_for_once(
    importer: Callable[[], Any], words: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    session = AmdsmiSession(importer, lambda _: None)
    assert session.read() == session.read() == {}
    (text,) = caplog.messages
    assert words in text
    assert not capsys.readouterr().out


def test_the_package_of_the_index_without_rocm_is_such_a_library(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert AmdsmiSession(import_amdsmi, lambda _: None).read() == {}
    assert "libamd_smi.so of ROCm is not found" in caplog.text


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("lacks", "amdsmi_gpu_driver_reload", "undefined symbol: amdsmi_gpu_driver_reload"),
        ("version", "27.0.0", r"amdsmi 7\.0\.2 does not go with libamd_smi\.so 27\.0\.0"),
    ],
)
def test_a_native_library_of_another_release_is_not_used(
    file: str, text: str, words: str, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    node.tell(file, text)
    assert node.session.read() == {}
    (said,) = caplog.messages
    assert re.search(words, said)
    assert "install the amdsmi of the ROCm that the node has" in said


def test_a_driver_that_comes_later_is_found_then(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.tell("fails", "amdsmi_init 34")
    assert node.session.read() == node.session.read() == {}
    (said,) = caplog.messages
    assert "amdsmi_init failed: AMDSMI_STATUS_DRIVER_NOT_LOADED" in said
    node.tell("fails", "")
    assert len(node.session.read()) == 2


@pytest.mark.parametrize("function", ["amdsmi_init", "amdsmi_get_gpu_metrics_info"])
async def test_a_library_that_does_not_return_costs_only_its_answers(
    function: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As while a GPU hangs; the backend's process would be killed, again and again."""
    node = Node(tmp_path, seconds=0.05)
    node.tell("hangs", function)
    assert node.session.read() == node.session.read() == {}
    (said,) = caplog.messages
    assert "AMD's library amdsmi has not returned within 0.05 s; the kernel's log may say" in said
    with pytest.raises(UndoLater):  # else a pod could not end
        async with node.session.paused():
            pytest.fail("the library may be open, and keeps the GPUs busy")
    node.tell("hangs", "")
    with anyio.fail_after(30):
        while not node.session.read():
            await anyio.lowlevel.checkpoint()
        while True:
            with contextlib.suppress(AmdsmiHangs):
                return node.session.close()


def test_a_question_that_fails_costs_only_its_answer(node: Node) -> None:
    node.tell("fails", "amdsmi_get_gpu_xgmi_link_status 2")
    told = node.session.read()[ADDRESS]
    assert told.links == ()
    assert told.throttled
    node.tell("fails", "amdsmi_get_gpu_xgmi_link_status 34")
    assert node.session.read() == {}
    node.tell("fails", "")
    assert node.session.read()[ADDRESS].links


def test_a_gpu_whose_address_is_not_told_costs_only_its_own_answers(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.tell("fails", f"amdsmi_get_gpu_device_bdf 2 {ADDRESS}")
    (told,) = node.session.read()
    assert told != ADDRESS
    (said,) = [one for one in caplog.messages if "address" in one]
    assert "amdsmi_get_gpu_device_bdf failed" in said
