"""Events of simulated GPUs are heard, whatever becomes of the session, the driver or a GPU meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pydra_nvidia.nvml.events import Event, EventWatcher, Heard, retry_pause
from pydra_nvidia.nvml.hung_queries import SuspendedQueries
from pydra_nvidia.nvml.mig_control import set_mig_mode
from pydra_nvidia.nvml.pynvml_library import Nvml
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.simulation.simulation import open_simulation

DOUBLE_BIT = 0x2
NOTHING = Heard()


class Watch:
    """A session over two GPUs, their watcher with a clock that only the test moves, and the machine."""

    def __init__(self, path: Path, **scenario: Any) -> None:
        self._file = path / "scenario.json"
        machine = {"host": {"onlyGpus": True}, "gpus": [{"model": "h100-80gb", "count": 2}]}
        self._scenario = {**machine, **scenario}
        self.fault()
        self.simulation = open_simulation(str(self._file), str(path / "machine"))
        self.inject = self.simulation.inject
        boards = self.simulation.machine.read().boards.values()
        self.uuids = [board.uuid for board in sorted(boards, key=lambda board: board.minor)]
        self.session = NvmlSession(self.simulation.load)
        self.now = 0.0
        self.watcher = EventWatcher(self.session, SuspendedQueries(str(path / "queries.json")), clock=lambda: self.now)

    def fault(self, *faults: dict[str, Any]) -> None:
        self._file.write_text(json.dumps({**self._scenario, "faults": faults}))

    def open(self) -> None:
        self.session.run_here(lambda nvml: nvml.call("nvmlDeviceGetCount"))

    def begin(self, uuids: Sequence[str] | None = None) -> Heard:
        """In an open session."""
        self.open()
        return self.watcher.watch(self.uuids if uuids is None else uuids)

    def poll(self) -> Heard:
        """When it is time for another try."""
        self.now += 300.0
        return self.watcher.poll()


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    watch = Watch(tmp_path)
    yield watch
    watch.session.close()


def test_an_event_has_its_gpu_its_code_and_its_instance(watch: Watch) -> None:
    assert watch.begin() == NOTHING
    watch.inject.xid(0, 79)
    watch.inject.xid(1, 94, gi=5, ci=0)
    watch.inject.event(1, DOUBLE_BIT)
    assert watch.poll().events == (
        Event(gpu=watch.uuids[0], xid=79),
        Event(gpu=watch.uuids[1], xid=94, instance=5),
        Event(gpu=watch.uuids[1], xid=None),
    )
    assert watch.poll() == NOTHING


def test_a_gpu_that_reports_other_events_but_no_xids_is_unmonitored(tmp_path: Path) -> None:
    model = {"name": "X", "architecture": 3, "compute": [3, 5], "memoryMiB": 1, "pci": {"device": "0x1234"}}
    watch = Watch(tmp_path, models={"x": {**model, "events": DOUBLE_BIT}}, gpus=[{"model": "x"}])
    watch.begin()
    assert watch.watcher.unmonitored == {*watch.uuids}
    watch.session.close()


def test_events_from_before_are_not_heard(watch: Watch) -> None:
    watch.inject.xid(0, 48)
    assert watch.begin() == NOTHING


def test_only_the_gpus_of_the_last_call_are_watched_and_the_last_events_of_others_are_heard(watch: Watch) -> None:
    watch.begin()
    watch.inject.xid(0, 62)
    assert watch.watcher.watch(watch.uuids[1:]).events == (Event(gpu=watch.uuids[0], xid=62),)
    watch.inject.xid(0, 79)
    watch.inject.xid(1, 48)
    assert watch.poll().events == (Event(gpu=watch.uuids[1], xid=48),)
    watch.watcher.watch(())
    watch.inject.xid(1, 48)
    assert watch.poll() == NOTHING


def test_the_end_of_a_watched_session_is_news_once_and_the_next_session_is_watched(watch: Watch) -> None:
    watch.begin()
    watch.session.close()
    assert watch.simulation.machine.clients() == {}
    assert watch.poll() == Heard(changed=True)
    assert watch.poll() == NOTHING
    assert watch.simulation.machine.clients() == {}, "watching opens no session"
    watch.open()
    watch.poll()
    watch.inject.xid(1, 62)
    assert watch.poll().events == (Event(gpu=watch.uuids[1], xid=62),)


def test_what_came_before_the_end_of_the_session_is_heard(watch: Watch) -> None:
    watch.begin()
    watch.inject.xid(0, 79)
    watch.session.close()
    assert watch.poll().events == (Event(gpu=watch.uuids[0], xid=79),)


def test_what_happens_while_gpus_are_registered_again_is_heard(watch: Watch) -> None:
    watch.begin()
    watch.session.run_here(lambda nvml: set_mig_mode(nvml, watch.uuids[0], on=True))
    watch.fault({"op": "nvmlDeviceRegisterEvents", "device": 1, "do": "xid", "xid": 48, "count": 1})
    assert Event(gpu=watch.uuids[1], xid=48) in (*watch.poll().events, *watch.poll().events)


def test_a_session_that_ends_while_it_is_not_watched_is_no_news(watch: Watch) -> None:
    watch.open()
    watch.session.close()
    assert watch.poll() == NOTHING


def test_a_driver_that_is_unloaded_ends_the_watching_until_it_is_back(watch: Watch) -> None:
    watch.begin()
    watch.inject.unload_driver(force=True)
    assert watch.poll() == Heard(changed=True)
    watch.inject.load_driver(force=True)
    watch.begin()
    watch.inject.xid(0, 79)
    assert watch.poll().events == (Event(gpu=watch.uuids[0], xid=79),)


def test_a_gpu_that_is_lost_has_its_xid_and_the_others_are_watched_on(watch: Watch) -> None:
    watch.begin()
    watch.inject.lose(0)
    xid, unavailable = Event(gpu=watch.uuids[0], xid=79), Event(gpu=watch.uuids[0], xid=None)
    assert watch.watcher.poll().events == (xid, unavailable)
    assert watch.poll().changed
    assert watch.watcher.unmonitored == {watch.uuids[0]}
    watch.inject.xid(1, 48)
    assert watch.poll().events == (Event(gpu=watch.uuids[1], xid=48),)


@pytest.mark.parametrize("symbol", ["nvmlEventSetCreate", "nvmlEventSetWait_v2"])
def test_a_failure_of_nvml_is_no_news_and_the_next_try_succeeds(watch: Watch, symbol: str) -> None:
    watch.fault({"op": symbol, "do": "raise", "code": "UNKNOWN", "count": 1})
    assert watch.begin() == NOTHING
    assert watch.poll() == NOTHING
    watch.inject.xid(0, 79)
    assert watch.poll().events == (Event(gpu=watch.uuids[0], xid=79),)


@pytest.mark.parametrize("symbol", ["nvmlEventSetCreate", "nvmlEventSetWait_v2"])
def test_gpus_are_unmonitored_while_nvml_refuses_their_events_again_and_again(watch: Watch, symbol: str) -> None:
    watch.fault({"op": symbol, "do": "raise", "code": "UNKNOWN"})
    watch.begin()
    assert watch.poll() == Heard(changed=True)
    assert watch.watcher.unmonitored == set(watch.uuids)
    watch.fault()
    assert watch.watcher.poll() == NOTHING, "it is not tried again at once"
    assert watch.poll() == Heard(changed=True)
    assert watch.watcher.unmonitored == frozenset()
    watch.inject.xid(0, 79)
    assert watch.poll().events == (Event(gpu=watch.uuids[0], xid=79),)


@pytest.mark.parametrize(
    ("failures", "pause"), [(0, 1.0), (1, 1.0), (2, 2.0), (5, 16.0), (9, 256.0), (10, 300.0), (10**6, 300.0)]
)
def test_what_fails_again_and_again_is_tried_at_longer_intervals(failures: int, pause: float) -> None:
    assert retry_pause(failures) == pause


def test_gpus_without_events_are_unmonitored_and_harm_nobody(watch: Watch) -> None:
    watch.fault({"op": "nvmlDeviceRegisterEvents", "device": 0, "do": "raise", "code": "NOT_SUPPORTED"})
    assert watch.begin() == Heard(changed=True)
    assert watch.watcher.unmonitored == {watch.uuids[0]}
    watch.inject.xid(1, 79)
    assert watch.poll().events == (Event(gpu=watch.uuids[1], xid=79),)


def test_gpus_are_heard_while_and_after_their_mig_mode_was_changed(watch: Watch) -> None:
    watch.begin()

    def switch(nvml: Nvml) -> None:
        watch.inject.xid(1, 48)
        set_mig_mode(nvml, watch.uuids[0], on=True)

    watch.session.run_here(switch)
    assert watch.poll() == Heard((Event(gpu=watch.uuids[1], xid=48),))
    watch.inject.xid(0, 79)
    watch.inject.xid(1, 62)
    assert watch.poll().events == (Event(gpu=watch.uuids[0], xid=79), Event(gpu=watch.uuids[1], xid=62))


@pytest.mark.parametrize("symbol", ["nvmlDeviceRegisterEvents", "nvmlEventSetCreate"])
def test_a_change_of_the_mig_mode_after_which_events_are_refused_is_no_failure(watch: Watch, symbol: str) -> None:
    watch.begin()
    watch.fault({"op": symbol, "do": "raise", "code": "UNKNOWN", "count": 1})
    watch.session.run_here(lambda nvml: set_mig_mode(nvml, watch.uuids[0], on=True))
    refused = set(sorted(watch.uuids)[:1]) if symbol == "nvmlDeviceRegisterEvents" else set[str]()
    assert watch.poll() == Heard(changed=bool(refused))
    assert watch.watcher.unmonitored == refused
    watch.poll()
    other = watch.uuids.index(max(watch.uuids))
    watch.inject.xid(other, 48)
    assert watch.poll().events == (Event(gpu=watch.uuids[other], xid=48),)


def test_a_flood_of_events_does_not_keep_nvml(watch: Watch) -> None:
    watch.begin()
    watch.inject.xid(0, 13)
    with watch.simulation.machine.change() as view:
        for _ in range(1010):
            watch.simulation.machine.record(view.state, watch.uuids[0], 0x8, 13)
    assert len(watch.poll().events) == 1000
    assert watch.poll().events
