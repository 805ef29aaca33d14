"""Who may have what at once."""

from __future__ import annotations

from typing import Any

import pytest

from pydra import DeviceInUse, TerminalError
from pydra_nvidia.claim_config import GpuConfig, GpuSharing, TimeSlicingConfig
from pydra_nvidia.claim_plan import SharesDiffer, find_conflict, find_holds
from pydra_nvidia.hardware_types import Placement
from pydra_nvidia.steps import Entry, Hold


@pytest.fixture
def reading(kit: Any) -> Any:
    return kit.reading(kit.gpu(0, mig=kit.mig()), kit.gpu(1))


def claim(kit: Any, reading: Any, uid: str, *devices: Any) -> Entry:
    return Entry(uid=uid, namespace="secret", name="private", holds=find_holds(kit.targets(reading, *devices)))


def sliced(interval: Any = None) -> GpuConfig:
    config = TimeSlicingConfig(interval=interval) if interval else None
    return GpuConfig(sharing=GpuSharing(strategy="TimeSlicing", time_slicing_config=config))


def test_a_hold_is_known_by_the_address_of_its_gpu(kit: Any, reading: Any) -> None:
    devices = (kit.give("gpu-0"), kit.give("gpu-0-mig-3g40gb-9-4"), kit.give("gpu-vfio-0"))
    assert find_holds(kit.targets(reading, *devices)) == (
        Hold(device="gpu-0", hardware="0000:10:00.0"),
        Hold(device="gpu-0-mig-3g40gb-9-4", hardware="0000:10:00.0", place=Placement(4, 4)),
        Hold(device="gpu-vfio-0", hardware="0000:10:00.0"),
    )


WHOLE, LEFT, RIGHT, IN_LEFT = "gpu-0", "gpu-0-mig-3g40gb-9-0", "gpu-0-mig-3g40gb-9-4", "gpu-0-mig-1g10gb-19-2"
VFIO, OTHER, OTHER_VFIO = "gpu-vfio-0", "gpu-1", "gpu-vfio-1"
EXCLUDED = {
    frozenset({WHOLE}): WHOLE,
    frozenset({VFIO}): VFIO,
    frozenset({LEFT}): LEFT,
    frozenset({WHOLE, VFIO}): "are the same hardware",
    frozenset({WHOLE, LEFT}): f"{LEFT} is a part of {WHOLE}",
    frozenset({WHOLE, RIGHT}): f"{RIGHT} is a part of {WHOLE}",
    frozenset({WHOLE, IN_LEFT}): f"{IN_LEFT} is a part of {WHOLE}",
    frozenset({VFIO, LEFT}): f"{LEFT} is a part of {VFIO}",
    frozenset({VFIO, RIGHT}): f"{RIGHT} is a part of {VFIO}",
    frozenset({VFIO, IN_LEFT}): f"{IN_LEFT} is a part of {VFIO}",
    frozenset({LEFT, IN_LEFT}): "need the same memory slices",
    frozenset({OTHER, OTHER_VFIO}): "are the same hardware",
    frozenset({RIGHT}): RIGHT,
    frozenset({IN_LEFT}): IN_LEFT,
    frozenset({OTHER}): OTHER,
    frozenset({OTHER_VFIO}): OTHER_VFIO,
}
ALL = (WHOLE, LEFT, RIGHT, IN_LEFT, VFIO, OTHER, OTHER_VFIO)


@pytest.mark.parametrize("held", ALL)
@pytest.mark.parametrize("wanted", ALL)
def test_hardware_is_given_once_whatever_the_scheduler_believed(kit: Any, reading: Any, wanted: str, held: str) -> None:
    entry, other = claim(kit, reading, "mine", kit.give(wanted)), claim(kit, reading, "theirs", kit.give(held))
    conflict = find_conflict(entry, [other])
    words = EXCLUDED.get(frozenset({wanted, held}))
    if words is None:
        assert conflict is None
        return
    assert isinstance(conflict, DeviceInUse)
    assert words in str(conflict)
    assert "claim with uid theirs" in str(conflict)
    assert held in str(conflict)
    assert not any(word in str(conflict) for word in ("secret", "private"))


@pytest.mark.parametrize("held", [WHOLE, LEFT, VFIO])
@pytest.mark.parametrize("who", ["mine", "theirs", "both"])
def test_looking_with_admin_access_excludes_nobody(kit: Any, reading: Any, held: str, who: str) -> None:
    entry = claim(kit, reading, "mine", kit.give(WHOLE, admin=who != "theirs"))
    other = claim(kit, reading, "theirs", kit.give(held, admin=who != "mine"))
    assert find_conflict(entry, [other]) is None


def test_a_claim_is_in_nobodys_way_by_what_it_holds_itself(kit: Any, reading: Any) -> None:
    entry = claim(kit, reading, "mine", kit.give(WHOLE))
    assert find_conflict(entry, [entry]) is None


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (None, None),
        (GpuConfig(), None),
        (sliced(), sliced("Default")),
        (sliced("Long"), sliced("Long")),
    ],
    ids=["none", "an empty one", "the default, said and not said", "the same"],
)
def test_shares_go_together_when_their_configs_agree(kit: Any, reading: Any, mine: Any, theirs: Any) -> None:
    one = kit.give(OTHER, *([mine] if mine else []), share="s1")
    other = kit.give(OTHER, *([theirs] if theirs else []), share="s2")
    assert find_conflict(claim(kit, reading, "mine", one), [claim(kit, reading, "theirs", other)]) is None


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        (
            sliced("Long"),
            sliced(),
            'sharing.timeSlicingConfig.interval is "Long" here and "Default" there',
        ),
        (
            None,
            sliced("Short"),
            'sharing.strategy is not set here and "TimeSlicing" there;'
            ' sharing.timeSlicingConfig.interval is not set here and "Short" there',
        ),
    ],
)
def test_shares_with_other_configs_are_told_what_differs(
    kit: Any, reading: Any, mine: Any, theirs: Any, words: str
) -> None:
    one = kit.give(OTHER, *([mine] if mine else []), share="s1")
    entry, other = claim(kit, reading, "mine", one), claim(kit, reading, "theirs", kit.give(OTHER, theirs, share="s2"))
    conflict = find_conflict(entry, [other])
    assert isinstance(conflict, SharesDiffer)
    assert conflict.retryable
    assert str(conflict) == (
        "device gpu-1 is shared with the claim with uid theirs, and claims that share a device must configure it"
        f" alike: {words}"
    )


@pytest.mark.parametrize(("mine", "theirs"), [("s1", None), (None, "s2")])
def test_a_share_and_the_whole_device_exclude_each_other(
    kit: Any, reading: Any, mine: str | None, theirs: str | None
) -> None:
    entry = claim(kit, reading, "mine", kit.give(OTHER, share=mine))
    other = claim(kit, reading, "theirs", kit.give(OTHER, share=theirs))
    assert isinstance(find_conflict(entry, [other]), DeviceInUse)


def test_shares_of_a_gpu_and_of_its_partition_exclude_each_other(kit: Any, reading: Any) -> None:
    entry = claim(kit, reading, "mine", kit.give(WHOLE, share="s1"))
    other = claim(kit, reading, "theirs", kit.give(LEFT, share="s2"))
    assert isinstance(find_conflict(entry, [other]), DeviceInUse)


def test_one_claim_cannot_have_the_same_hardware_in_two_ways(kit: Any, reading: Any) -> None:
    conflict = find_conflict(claim(kit, reading, "mine", kit.give(OTHER), kit.give(OTHER_VFIO)), [])
    assert isinstance(conflict, TerminalError)
    assert str(conflict) == (
        "gpu-1 and gpu-vfio-1 are the same hardware, so that one claim cannot have both; ask for one of them"
    )


def test_two_shares_in_one_claim_must_agree_too(kit: Any, reading: Any) -> None:
    devices = (kit.give(OTHER, sliced("Long"), share="s1"), kit.give(OTHER, sliced("Short"), share="s2"))
    conflict = find_conflict(claim(kit, reading, "mine", *devices), [])
    assert isinstance(conflict, TerminalError)
    assert '"Long" in one request and "Short" in another' in str(conflict)
