"""What a backend answers is read within bounds, whatever it is, and refused as a violation of its contract."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pydra.backends.contract_validation import MAX_STATE
from pydra.backends.supervisor import AnswerReader
from pydra.backends.wire import MAX_CONTAINERS, Reply
from pydra.claim import AllocatedDevice, Claim
from pydra.errors import ContractError

CLAIM = Claim(uid="u", namespace="ns", name="c", devices=(AllocatedDevice(request="r", pool="p", device="d"),))


def reply(body: bytes) -> Reply:
    return Reply(id=1, result=msgspec.Raw(body))


def refused(method: str, body: bytes, **arguments: Any) -> str:
    reader = AnswerReader("x", lambda _: None)
    given = () if method == "read_inventory" else (CLAIM,)
    with pytest.raises(ContractError) as caught:
        getattr(reader, method)(reply(body), *given, **arguments)
    return str(caught.value)


def inventory_of(device: bytes, count: int) -> bytes:
    return b"\x81\xa7devices\xdd" + count.to_bytes(4, "big") + device * count


def test_of_many_mismatches_the_first_are_looked_for() -> None:
    said = refused("read_inventory", inventory_of(b"\xc0", 5000))
    assert said.endswith("discover: $.devices[0]: found null, allowed: a pydra.Device (and 999 more like this)")


@pytest.mark.parametrize("empty", [b"\x80", b"\x90", b"\xdc\x00\x00", b"\xdf\x00\x00\x00\x00"])
def test_an_answer_of_countless_objects_is_refused_before_they_take_memory(empty: bytes) -> None:
    said = refused("read_inventory", inventory_of(empty, MAX_CONTAINERS))
    assert said.endswith("discover returned more than 500,000 lists and objects")


@pytest.mark.parametrize(
    ("body", "problem"),
    [(b"\xa1\xff", "codec can't decode byte"), (b"\x91" * 5000 + b"\xc0", "recursion")],
    ids=["text that is not UTF-8", "nested too deep"],
)
def test_a_result_that_cannot_be_decoded_is_the_backends_fault(body: bytes, problem: str) -> None:
    assert problem in refused("read_result", body)


@pytest.mark.parametrize("has_steps", [True, False])
def test_a_plan_that_no_record_could_hold_is_refused_before_it_is_read(has_steps: bool) -> None:
    data = msgspec.msgpack.encode([None] * 3 * MAX_STATE)
    body = b"\x81\xa4data" + data if has_steps else data
    assert f"plan returned more than {MAX_STATE} bytes of JSON" in refused("read_plan", body, has_steps=has_steps)
    assert f"apply returned more than {MAX_STATE} bytes of JSON" in refused("read_result", data)


@pytest.mark.parametrize(
    ("value", "problem"),
    [(b"firmware", "type bytes, which is not JSON"), (msgspec.msgpack.Ext(5, b"x"), "an extension of msgpack, type 5")],
    ids=["bytes", "extension"],
)
@pytest.mark.parametrize("has_steps", [True, False])
def test_data_of_a_plan_that_is_not_json_is_refused_with_steps_and_without(
    has_steps: bool, value: object, problem: str
) -> None:
    body = msgspec.msgpack.encode({"data": value} if has_steps else value)
    assert problem in refused("read_plan", body, has_steps=has_steps)


def test_a_step_of_a_plan_that_is_no_json_is_the_backends_fault() -> None:
    step = {"step": {"x": msgspec.msgpack.Ext(5, b"x")}, "key": "k", "label": "l"}
    assert "an extension" in refused("read_plan", msgspec.msgpack.encode({"steps": [step]}), has_steps=True)
