"""What plugins answer when claims are prepared and unprepared, checked as the kubelet does. Pure.

The texts are what a user reads in the pod's Events. Source: pkg/kubelet/cm/dra/manager.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from pydra.kubelet.pb import Device, NodePrepareResourceResponse, NodeUnprepareResourceResponse
from pydra_dev.kubelet.pod_claims import ClaimKey


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
    asked: Sequence[ClaimKey], claims: Mapping[str, NodePrepareResourceResponse | None]
) -> Mapping[str, tuple[PreparedDevice, ...]]:
    """The devices of each claim by uid. Raises AnswerError."""
    _refuse_errors("NodePrepareResources", asked, claims)
    return {uid: tuple(map(_parse_device, entry.devices)) if entry else () for uid, entry in claims.items()}


def check_unprepared(asked: Sequence[ClaimKey], claims: Mapping[str, NodeUnprepareResourceResponse | None]) -> None:
    """Raise AnswerError unless every claim was answered, none that was not asked for, and none with an error."""
    _refuse_errors("NodeUnprepareResources", asked, claims)


def _refuse_errors(
    method: str,
    asked: Sequence[ClaimKey],
    claims: Mapping[str, NodePrepareResourceResponse | None] | Mapping[str, NodeUnprepareResourceResponse | None],
) -> None:
    names = {claim.uid: claim.name for claim in asked}
    for uid, entry in sorted(claims.items()):
        if uid not in names:
            raise AnswerError(f"{method} returned result for unknown claim UID {uid}")
        # An entry without a value is, in protobuf, an empty message.
        if entry and entry.error:
            raise AnswerError(f"{method} failed for ResourceClaim {names[uid]}: {entry.error}")
    # Answers are by uid: a claim that was asked for twice, since its pod names it twice, counts as skipped once.
    if skipped := len(asked) - len(claims):
        twice = sorted({claim.name for claim in asked if asked.count(claim) > 1})
        why = f" (the pod names {', '.join(twice)} more than once in spec.resourceClaims)" if twice else ""
        raise AnswerError(f"{method} skipped {skipped} ResourceClaims{why}")


def _parse_device(device: Device) -> PreparedDevice:
    return PreparedDevice(
        pool=device.pool_name,
        device=device.device_name,
        share_id=device.share_id,
        requests=tuple(device.request_names),
        cdi_ids=tuple(device.cdi_device_ids),
    )
