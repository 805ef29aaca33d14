"""Which sockets came and went, which instance is called, and how long to wait in between."""

from __future__ import annotations

from typing import cast

import pytest

from pydra_dev.kubelet.plugins import PluginInstance, Sockets, choose_instance, compare_sockets
from pydra_dev.kubelet.settings import Backoff

OLD, NEW = (1, 100), (2, 200)


@pytest.mark.parametrize(
    ("known", "found", "gone", "new"),
    [
        ({}, {}, (), ()),
        ({}, {"/b": NEW, "/a": NEW}, (), ("/a", "/b")),
        ({"/a": OLD}, {}, ("/a",), ()),
        ({"/a": OLD}, {"/a": OLD}, (), ()),
        ({"/a": OLD}, {"/a": NEW}, ("/a",), ("/a",)),
        ({"/a": OLD, "/b": OLD}, {"/b": OLD, "/c": NEW}, ("/a",), ("/c",)),
    ],
    ids=["nothing", "new", "gone", "same", "replaced", "mixed"],
)
def test_sockets_come_go_and_are_replaced(
    known: Sockets, found: Sockets, gone: tuple[str, ...], new: tuple[str, ...]
) -> None:
    assert compare_sockets(known, found) == (gone, new)


class Instance:
    def __init__(self, name: str, connected: bool) -> None:
        self.name = name
        self.connected = connected


@pytest.mark.parametrize(
    ("connected", "chosen"),
    [((True, True), "1"), ((True, False), "0"), ((False, False), "1"), ((False, True), "1")],
)
def test_the_latest_connected_instance_is_called_or_else_the_latest(connected: tuple[bool, ...], chosen: str) -> None:
    instances = [cast("PluginInstance", Instance(str(number), up)) for number, up in enumerate(connected)]
    assert cast("Instance", choose_instance(instances)).name == chosen


def test_pauses_grow_to_a_limit_and_stay_there() -> None:
    backoff = Backoff(first=0.5, factor=2, longest=122)
    assert [backoff.pause(failures) for failures in (1, 2, 3, 8, 9, 10_000)] == [0.5, 1, 2, 64, 122, 122]
