"""The API's rules for the status of a claim's device, of which one that is broken has the whole status refused.

Source: Kubernetes API reference, AllocatedDeviceStatus, NetworkDeviceData and Condition; validation of 1.36.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from ipaddress import ip_interface

import msgspec

from pydra.device_status import Condition, DeviceStatus, NetworkData
from pydra.json_encodable import find_json_problems

CONDITIONS = 8
DATA_BYTES = 10 * 1024
ADDRESSES = 16
INTERFACE_BYTES = 256
HARDWARE_ADDRESS_BYTES = 128
MESSAGE_BYTES = 32 * 1024
TYPE_CHARACTERS = 316
REASON_CHARACTERS = 1024

_TYPE = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")


def check_device_status(status: DeviceStatus) -> Iterator[str]:
    """Yield why the API server would refuse it."""
    if len(status.conditions) > CONDITIONS:  # of which there may be any number
        yield f"status has {len(status.conditions)} conditions; at most {CONDITIONS} are allowed"
    else:
        yield from _check_conditions(status.conditions)
    problems = list(find_json_problems(status.data, "status.data"))
    yield from problems
    if not problems and (size := len(msgspec.json.encode(status.data))) > DATA_BYTES:
        yield f"status.data has {size} bytes of JSON; at most {DATA_BYTES} are allowed"
    if status.network_data is not None:
        yield from _check_network(status.network_data)


def _check_conditions(conditions: Sequence[Condition]) -> Iterator[str]:
    types = [one.type for one in conditions]
    for name in sorted({one for one in types if types.count(one) > 1}):
        yield f"status has two conditions of the type {name!r}"
    for one in conditions:
        yield from _check_condition(one)


def _check_condition(one: Condition) -> Iterator[str]:
    if len(one.type) > TYPE_CHARACTERS or not _TYPE.fullmatch(one.type):
        yield f"{one.type[:64]!r} is not a valid type of a condition; it must be a word in CamelCase, such as Ready"
    if len(one.reason) > REASON_CHARACTERS or not _REASON.fullmatch(one.reason):
        yield f"{one.reason[:64]!r} is not a valid reason of a condition; it must be a word in CamelCase"
    if len(one.message.encode(errors="replace")) > MESSAGE_BYTES:
        yield f"the message of the condition {one.type} has more than {MESSAGE_BYTES} bytes"


def _check_network(data: NetworkData) -> Iterator[str]:
    for what, text, limit in (
        ("interface_name", data.interface_name, INTERFACE_BYTES),
        ("hardware_address", data.hardware_address, HARDWARE_ADDRESS_BYTES),
    ):
        if len(text.encode(errors="replace")) > limit:
            yield f"network_data.{what} has more than {limit} bytes"
    if len(data.ips) > ADDRESSES:
        yield f"network_data has {len(data.ips)} addresses; at most {ADDRESSES} are allowed"
        return
    for address in data.ips:
        if not _is_interface_address(address):
            yield f"network_data.ips: {address[:64]!r} is not an address with a prefix length, such as 192.0.2.5/24"
        elif data.ips.count(address) > 1:
            yield f"network_data.ips: {address} is there twice"


def _is_interface_address(text: str) -> bool:
    """Whether it is canonical, which the API server demands."""
    try:
        return str(ip_interface(text)) == text
    except ValueError:
        return False
