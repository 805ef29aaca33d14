"""What counts as an answer to prepare and unprepare."""

from __future__ import annotations

import pytest

from pydra.kubelet.pb import dra_v1
from pydra_dev.kubelet.claims import AnswerError, PreparedDevice, check_unprepared, parse_prepared

NAMES = {"u1": "one", "u2": "two"}


def test_devices_are_read_with_all_they_have() -> None:
    device = dra_v1.Device(request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["a/b=c"], share_id="s")
    entries = {"u1": dra_v1.NodePrepareResourceResponse(devices=[device]), "u2": dra_v1.NodePrepareResourceResponse()}
    assert parse_prepared(NAMES, entries) == {
        "u1": (PreparedDevice(pool="p", device="d", share_id="s", requests=("r",), cdi_ids=("a/b=c",)),),
        "u2": (),
    }


def test_v1beta1_has_no_share_ids() -> None:
    entry = dra_v1.NodePrepareResourceResponse(devices=[dra_v1.Device(pool_name="p", device_name="d", share_id="s")])
    assert parse_prepared({"u1": "one"}, {"u1": entry}, share_ids=False)["u1"][0].share_id is None


def test_an_entry_without_a_value_is_an_empty_one() -> None:
    assert parse_prepared({"u1": "one"}, {"u1": None}) == {"u1": ()}
    check_unprepared({"u1": "one"}, {"u1": None})


@pytest.mark.parametrize(
    ("uids", "message"),
    [
        (["u1"], "NodePrepareResources skipped 1 ResourceClaims"),
        ([], "NodePrepareResources skipped 2 ResourceClaims"),
        (["u1", "u2", "u3"], "NodePrepareResources returned result for unknown claim UID u3"),
        (["u1", "u3"], "unknown claim UID u3"),
    ],
)
def test_exactly_the_claims_asked_for_must_be_answered(uids: list[str], message: str) -> None:
    with pytest.raises(AnswerError, match=message):
        parse_prepared(NAMES, {uid: dra_v1.NodePrepareResourceResponse() for uid in uids})
    with pytest.raises(AnswerError, match=message.replace("Prepare", "Unprepare")):
        check_unprepared(NAMES, {uid: dra_v1.NodeUnprepareResourceResponse() for uid in uids})


def test_an_error_of_one_claim_names_the_claim() -> None:
    with pytest.raises(AnswerError, match=r"^NodePrepareResources failed for ResourceClaim one: no$"):
        parse_prepared(NAMES, {"u1": dra_v1.NodePrepareResourceResponse(error="no")})
    with pytest.raises(AnswerError, match=r"^NodeUnprepareResources failed for ResourceClaim two: no$"):
        check_unprepared(NAMES, {"u2": dra_v1.NodeUnprepareResourceResponse(error="no")})
