"""Events of simulated GPUs are heard, whatever becomes of the session, the driver or a GPU meanwhile."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pydra_nvidia.nvml.events import Event, EventWatcher, retry_pause
from pydra_nvidia.nvml.library import Nvml
from pydra_nvidia.nvml.mig_control import set_mig_mode
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.simulation.simulation import open_simulation

DEADLINE = 60.0
DOUBLE_BIT = 0x2


class Watch:
    """A session over two GPUs, what its watcher told, and the machine."""

    def __init__(self, path: Path, **scenario: Any) -> None:
        self._file = path / "scenario.json"
        self._scenario = {"gpus": [{"model": "h100-80gb", "count": 2}], **scenario}
        self.fault()
        self.simulation = open_simulation(str(self._file), str(path / "machine"))
        self.inject = self.simulation.inject
        boards = self.simulation.machine.read().boards.values()
        self.uuids = [board.uuid for board in sorted(boards, key=lambda board: board.minor)]
        self.session = NvmlSession(self.simulation.load)
        self.told: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self.watcher = EventWatcher(self.session, self.told.put, pause=0.01)

    def fault(self, *faults: dict[str, Any]) -> None:
        self._file.write_text(json.dumps({**self._scenario, "faults": faults}))

    def hear(self) -> Event | None:
        """The next thing told; raises queue.Empty."""
        return self.told.get(timeout=DEADLINE)

    def threads(self) -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "GPU events"]


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    watch = Watch(tmp_path)
    yield watch
    watch.watcher.stop()
    watch.session.close()
    assert watch.threads() == []


def test_an_event_tells_its_gpu_its_code_and_its_instance(watch: Watch) -> None:
    watch.watcher.watch(watch.uuids)
    watch.inject.xid(0, 79)
    assert watch.hear() == Event(gpu=watch.uuids[0], xid=79)
    watch.inject.xid(1, 94, gi=5, ci=0)
    assert watch.hear() == Event(gpu=watch.uuids[1], xid=94, instance=5)
    watch.inject.event(1, DOUBLE_BIT)
    assert watch.hear() == Event(gpu=watch.uuids[1], xid=None)


def test_what_happened_before_is_not_told(watch: Watch) -> None:
    watch.inject.xid(0, 48)
    watch.watcher.watch(watch.uuids)
    watch.inject.xid(0, 95)
    assert watch.hear() == Event(gpu=watch.uuids[0], xid=95)


def test_watching_the_same_again_costs_nothing(watch: Watch) -> None:
    watch.watcher.watch(watch.uuids)
    (thread,) = (one for one in threading.enumerate() if one.name == "GPU events")
    watch.watcher.watch(reversed(watch.uuids))  # type: ignore[arg-type]
    assert thread in threading.enumerate()
    assert len(watch.threads()) == 1


def test_only_the_gpus_of_the_last_call_are_watched(watch: Watch) -> None:
    watch.watcher.watch(watch.uuids)
    watch.watcher.watch(watch.uuids[1:])
    watch.inject.xid(0, 79)
    watch.inject.xid(1, 48)
    assert watch.hear() == Event(gpu=watch.uuids[1], xid=48)
    watch.watcher.watch(())
    assert watch.threads() == []


def test_nobody_uses_nvml_when_the_session_has_ended_and_it_is_told_that_watching_has(watch: Watch) -> None:
    watch.watcher.watch(watch.uuids)
    watch.session.close()
    assert watch.threads() == []
    assert watch.simulation.machine.clients() == {}
    assert watch.hear() is None
    watch.watcher.watch(watch.uuids)
    watch.inject.xid(0, 79)
    assert watch.hear() == Event(gpu=watch.uuids[0], xid=79)


def test_a_session_that_ends_while_it_is_not_watched_is_no_news(watch: Watch) -> None:
    watch.session.run_here(lambda nvml: nvml.call("nvmlDeviceGetCount"))
    watch.session.close()
    with pytest.raises(queue.Empty):
        watch.told.get_nowait()


def test_another_session_is_watched_anew(watch: Watch) -> None:
    watch.watcher.watch(watch.uuids)
    watch.session.close()
    watch.session.run_here(lambda nvml: nvml.call("nvmlDeviceGetCount"))
    assert watch.hear() is None
    watch.watcher.watch(watch.uuids)
    watch.inject.xid(1, 62)
    assert watch.hear() == Event(gpu=watch.uuids[1], xid=62)


def test_a_driver_that_is_unloaded_ends_the_watching_until_it_is_back(watch: Watch) -> None:
    watch.watcher.watch(watch.uuids)
    watch.inject.unload_driver(force=True)
    assert watch.hear() is None
    watch.watcher.watch(watch.uuids)
    assert watch.hear() is None, "it is tried again, as often as it is told"
    watch.inject.load_driver(force=True)
    watch.watcher.watch(watch.uuids)
    watch.inject.xid(0, 79)
    assert watch.hear() == Event(gpu=watch.uuids[0], xid=79)


def test_a_gpu_that_is_lost_is_told_with_its_xid_and_the_others_are_watched_on(watch: Watch) -> None:
    watch.watcher.watch(watch.uuids)
    watch.inject.lose(0)
    assert watch.hear() == Event(gpu=watch.uuids[0], xid=79)
    assert watch.hear() is None
    watch.watcher.watch(watch.uuids)
    assert watch.watcher.unmonitored == {watch.uuids[0]}
    watch.inject.xid(1, 48)
    assert watch.hear() == Event(gpu=watch.uuids[1], xid=48)


@pytest.mark.parametrize("symbol", ["nvmlEventSetCreate", "nvmlEventSetWait_v2"])
def test_a_failure_of_nvml_is_told_and_the_next_try_succeeds(watch: Watch, symbol: str) -> None:
    watch.fault({"op": symbol, "do": "raise", "code": "UNKNOWN", "count": 1})
    watch.watcher.watch(watch.uuids)
    assert watch.hear() is None
    watch.watcher.watch(watch.uuids)
    watch.inject.xid(0, 79)
    assert watch.hear() == Event(gpu=watch.uuids[0], xid=79)


def test_gpus_without_events_are_unmonitored_and_harm_nobody(tmp_path: Path) -> None:
    watch = Watch(tmp_path, faults=[])
    watch.fault({"op": "nvmlDeviceRegisterEvents", "device": 0, "do": "raise", "code": "NOT_SUPPORTED"})
    watch.watcher.watch(watch.uuids)
    assert watch.watcher.unmonitored == {watch.uuids[0]}
    watch.inject.xid(1, 79)
    assert watch.hear() == Event(gpu=watch.uuids[1], xid=79)
    watch.watcher.stop()
    watch.session.close()


@pytest.mark.parametrize(
    ("failures", "pause"), [(0, 1.0), (1, 1.0), (2, 2.0), (5, 16.0), (9, 256.0), (10, 300.0), (10**6, 300.0)]
)
def test_what_fails_again_and_again_is_tried_at_longer_intervals(failures: int, pause: float) -> None:
    assert retry_pause(1.0, failures) == pause


@pytest.mark.parametrize("symbol", ["nvmlEventSetCreate", "nvmlEventSetWait_v2"])
def test_gpus_are_unmonitored_while_nvml_refuses_again_and_again_to_tell_their_events(
    watch: Watch, symbol: str
) -> None:
    watch.fault({"op": symbol, "do": "raise", "code": "UNKNOWN"})
    for _ in range(3):
        watch.watcher.watch(watch.uuids)
        assert watch.hear() is None
    watch.watcher.watch(watch.uuids)
    assert watch.watcher.unmonitored == set(watch.uuids)
    assert watch.hear() is None
    watch.fault()
    watch.watcher.watch(watch.uuids)
    assert watch.hear() is None, "it is told, so that they are looked at again"
    assert watch.watcher.unmonitored == frozenset()
    watch.inject.xid(0, 79)
    assert watch.hear() == Event(gpu=watch.uuids[0], xid=79)


def test_a_gpu_is_heard_as_soon_as_its_mig_mode_was_changed(watch: Watch) -> None:
    watch.watcher.watch(watch.uuids)
    watch.session.run_here(lambda nvml: set_mig_mode(nvml, watch.uuids[0], on=True))
    watch.inject.xid(0, 79)
    assert watch.hear() == Event(gpu=watch.uuids[0], xid=79)
    watch.watcher.watch(watch.uuids)
    watch.inject.xid(1, 62)
    assert watch.hear() == Event(gpu=watch.uuids[1], xid=62)


def test_what_happens_while_a_mig_mode_is_changed_is_heard(watch: Watch) -> None:
    watch.watcher.watch(watch.uuids)

    def switch(nvml: Nvml) -> None:
        watch.inject.xid(1, 48)
        set_mig_mode(nvml, watch.uuids[0], on=True)

    watch.session.run_here(switch)
    assert watch.hear() == Event(gpu=watch.uuids[1], xid=48)


def test_the_last_event_of_a_gpu_that_is_watched_no_more_is_heard(watch: Watch) -> None:
    watch.watcher.watch(watch.uuids)
    watch.inject.xid(0, 79)
    watch.watcher.watch(watch.uuids[1:])
    assert watch.hear() == Event(gpu=watch.uuids[0], xid=79)


def test_a_gpu_that_cannot_be_watched_after_its_mig_mode_was_changed_is_told(watch: Watch) -> None:
    watch.watcher.watch(watch.uuids)
    watch.fault({"op": "nvmlDeviceRegisterEvents", "device": 0, "do": "raise", "code": "UNKNOWN"})
    watch.session.run_here(lambda nvml: set_mig_mode(nvml, watch.uuids[0], on=True))
    assert watch.hear() is None
    assert watch.watcher.unmonitored == {watch.uuids[0]}
    watch.inject.xid(1, 48)
    assert watch.hear() == Event(gpu=watch.uuids[1], xid=48)


def test_a_switch_after_which_nobody_can_be_watched_is_no_failure_and_tried_again(watch: Watch) -> None:
    watch.watcher.watch(watch.uuids)
    watch.fault({"op": "nvmlEventSetCreate", "do": "raise", "code": "UNKNOWN", "count": 1})
    watch.session.run_here(lambda nvml: set_mig_mode(nvml, watch.uuids[0], on=True))
    assert watch.hear() is None, "so that it is watched again"
    watch.watcher.watch(watch.uuids)
    watch.inject.xid(0, 79)
    assert watch.hear() == Event(gpu=watch.uuids[0], xid=79)


def test_the_mode_of_a_gpu_that_is_not_watched_is_no_news(watch: Watch) -> None:
    watch.watcher.watch(watch.uuids[1:])
    watch.session.run_here(lambda nvml: set_mig_mode(nvml, watch.uuids[0], on=True))
    watch.inject.xid(1, 48)
    assert watch.hear() == Event(gpu=watch.uuids[1], xid=48)


def test_a_wait_that_does_not_end_is_waited_for_before_the_session_ends(watch: Watch) -> None:
    watch.fault({"op": "nvmlEventSetWait_v2", "do": "hang", "seconds": 2, "count": 1})
    watch.watcher.watch(watch.uuids)
    assert not watch.watcher.stop(0.01)
    assert watch.session.is_open
    watch.session.close()
    assert watch.threads() == []
