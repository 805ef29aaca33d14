"""Equal devices of the wanted pool and of the cache are one object in memory."""

from __future__ import annotations

import copy
from typing import Any

from pydra.slices.build import WantedPool, build_generate_name
from pydra.slices.diff import share_devices

JsonObject = dict[str, Any]


def pool(*names: str) -> WantedPool:
    slices = tuple({"devices": [{"name": name}]} for name in names)
    return WantedPool(driver="gpu.example.com", name="pool1", node="node1", slices=slices)


def observed(wanted: WantedPool) -> list[JsonObject]:
    count = len(wanted.slices)
    return [
        {
            "metadata": {"name": build_generate_name(index, count, wanted.driver, "node1") + "abcde"},
            "spec": {"driver": wanted.driver, **copy.deepcopy(content)},
        }
        for index, content in enumerate(wanted.slices)
    ]


def test_equal_devices_are_in_memory_once() -> None:
    wanted = pool("gpu-0", "gpu-1")
    slices = observed(wanted)
    before = copy.deepcopy(slices)
    share_devices(wanted, slices)
    assert slices == before
    assert [body["spec"]["devices"] for body in slices] == [content["devices"] for content in wanted.slices]
    assert all(
        body["spec"]["devices"] is content["devices"] for body, content in zip(slices, wanted.slices, strict=True)
    )


def test_other_devices_stay_as_they_were_observed() -> None:
    wanted = pool("gpu-0", "gpu-1")
    slices = observed(wanted)
    slices[0]["spec"]["devices"][0]["bindsToNode"] = True
    slices[1]["metadata"]["name"] = "somebody-elses"
    before = copy.deepcopy(slices)
    share_devices(wanted, slices)
    assert slices == before
    assert slices[0]["spec"]["devices"] is not wanted.slices[0]["devices"]
    assert slices[1]["spec"]["devices"] is not wanted.slices[1]["devices"]
