"""Who may have what at once."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from pydra import DeviceInUse, TerminalError
from pydra_nvidia.claim_config import GpuConfig, GpuSharing, TimeSlicingConfig
from pydra_nvidia.claim_plan import SharesDiffer, find_conflict, find_holds
from pydra_nvidia.claim_records import Entry, Hold
from pydra_nvidia.hardware_types import Placement


@pytest.fixture
def reading(kit: Any) -> Any:
    return kit.reading(kit.gpu(0, mig=kit.mig()), kit.gpu(1))


def claim(kit: Any, reading: Any, uid: str, *devices: Any) -> Entry:
    return Entry(uid=uid, name="secret/private", holds=find_holds(kit.targets(reading, *devices)))


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


WHOLE, PART, VFIO, OTHER = "gpu-0", "gpu-0-mig-3g40gb-9-0", "gpu-vfio-0", "gpu-1"


@pytest.mark.parametrize(
    ("wanted", "held", "refused"),
    [(VFIO, WHOLE, True), (WHOLE, VFIO, True), (PART, VFIO, True), (OTHER, VFIO, False), ("gpu-vfio-1", WHOLE, False)],
)
def test_a_gpu_is_not_passed_through_while_containers_use_it(
    kit: Any, reading: Any, wanted: str, held: str, refused: bool
) -> None:
    conflict = find_conflict(
        claim(kit, reading, "mine", kit.give(wanted)).holds, [claim(kit, reading, "theirs", kit.give(held))]
    )
    assert isinstance(conflict, DeviceInUse) is refused
    assert not refused or f"{wanted} and {held} are the same hardware" in str(conflict)


@pytest.mark.parametrize(
    ("wanted", "held"),
    [("gpu-vfio-0", "gpu-vfio-1"), ("gpu-0", "gpu-1"), (PART, "gpu-1-mig-3g40gb-9-0")],
)
def test_hardware_that_has_another_name_since_its_claim_got_it_is_not_given_again(
    kit: Any, reading: Any, wanted: str, held: str
) -> None:
    mine = claim(kit, reading, "mine", kit.give(wanted)).holds
    before = tuple(replace(one, device=held) for one in mine)  # as when a GPU before it is unplugged
    conflict = find_conflict(mine, [Entry(uid="theirs", name="secret/private", holds=before)])
    assert isinstance(conflict, DeviceInUse)
    assert f"{wanted} and {held} are the same hardware" in str(conflict)


@pytest.mark.parametrize("who", ["mine", "theirs", "both"])
def test_looking_with_admin_access_excludes_nobody(kit: Any, reading: Any, who: str) -> None:
    mine = claim(kit, reading, "mine", kit.give(WHOLE, admin=who != "theirs"))
    other = claim(kit, reading, "theirs", kit.give(VFIO, admin=who != "mine"))
    assert find_conflict(mine.holds, [other]) is None


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
    assert find_conflict(claim(kit, reading, "mine", one).holds, [claim(kit, reading, "theirs", other)]) is None


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
            'sharing.timeSlicingConfig.interval is not set here and "Short" there',
        ),
    ],
)
def test_shares_with_other_configs_are_refused_with_what_differs(
    kit: Any, reading: Any, mine: Any, theirs: Any, words: str
) -> None:
    one = kit.give(OTHER, *([mine] if mine else []), share="s1")
    entry, other = claim(kit, reading, "mine", one), claim(kit, reading, "theirs", kit.give(OTHER, theirs, share="s2"))
    conflict = find_conflict(entry.holds, [other])
    assert isinstance(conflict, SharesDiffer)
    assert conflict.retryable
    assert str(conflict) == (
        "device gpu-1 is shared with the claim with uid theirs, and claims that share a device must configure it"
        f" alike: {words}"
    )


@pytest.mark.parametrize("who", ["mine", "theirs"])
def test_a_share_with_admin_access_need_not_be_configured_as_the_others_are(kit: Any, reading: Any, who: str) -> None:
    one = claim(kit, reading, "mine", kit.give(OTHER, sliced("Long"), share="s1", admin=who == "mine"))
    other = claim(kit, reading, "theirs", kit.give(OTHER, share="s2", admin=who == "theirs"))
    assert find_conflict(one.holds, [other]) is None


def test_two_shares_in_one_claim_must_agree_too(kit: Any, reading: Any) -> None:
    devices = (kit.give(OTHER, sliced("Long"), share="s1"), kit.give(OTHER, sliced("Short"), share="s2"))
    conflict = find_conflict(claim(kit, reading, "mine", *devices).holds, [])
    assert isinstance(conflict, TerminalError)
    assert '"Long" in one request and "Short" in another' in str(conflict)
