"""What plugins answer when claims are prepared and unprepared, checked as the kubelet does. Pure.

The texts are what a user reads in the pod's Events. Source: pkg/kubelet/cm/dra/manager.go.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pydra.kubelet.pb import Device, NodePrepareResourceResponse, NodeUnprepareResourceResponse


class PreparedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device as the kubelet keeps it; no `requests` means that it is for all of the claim's."""

    pool: str
    device: str
    share_id: str | None = None
    requests: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] = ()


class AnswerError(Exception):
    """The answer fails the pod; the text is the event's."""


def parse_prepared(
    names: Mapping[str, str], claims: Mapping[str, NodePrepareResourceResponse | None]
) -> Mapping[str, tuple[PreparedDevice, ...]]:
    """The devices of each claim by uid; `names` are those of the claims asked for. Raises AnswerError."""
    _refuse_errors("NodePrepareResources", names, claims)
    return {uid: tuple(map(_parse_device, entry.devices)) if entry else () for uid, entry in claims.items()}


def check_unprepared(names: Mapping[str, str], claims: Mapping[str, NodeUnprepareResourceResponse | None]) -> None:
    """Raise AnswerError unless every claim was answered, none that was not asked for, and none with an error."""
    _refuse_errors("NodeUnprepareResources", names, claims)


def _refuse_errors(
    method: str,
    names: Mapping[str, str],
    claims: Mapping[str, NodePrepareResourceResponse | None] | Mapping[str, NodeUnprepareResourceResponse | None],
) -> None:
    for uid, entry in sorted(claims.items()):
        if uid not in names:
            raise AnswerError(f"{method} returned result for unknown claim UID {uid}")
        # An entry without a value is, in protobuf, an empty message.
        if entry and entry.error:
            raise AnswerError(f"{method} failed for ResourceClaim {names[uid]}: {entry.error}")
    if skipped := len(names) - len(claims):
        raise AnswerError(f"{method} skipped {skipped} ResourceClaims")


def _parse_device(device: Device) -> PreparedDevice:
    return PreparedDevice(
        pool=device.pool_name,
        device=device.device_name,
        share_id=device.share_id,
        requests=tuple(device.request_names),
        cdi_ids=tuple(device.cdi_device_ids),
    )
