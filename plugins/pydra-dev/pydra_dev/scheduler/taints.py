"""Taints of devices, and which tolerations let a claim have them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pydra_dev.api import schema


def find_taint(device: schema.Device, tolerations: Sequence[schema.Toleration]) -> str:
    """What the first taint that keeps claims away, and that nothing tolerates, has against a request; or nothing."""
    for taint in device.taints:
        if taint.effect in {"NoSchedule", "NoExecute"} and not any(tolerates(one, taint) for one in tolerations):
            return f"tainted {format_taint(taint)}, which the request does not tolerate"
    return ""


def format_taint(taint: schema.Taint) -> str:
    """`key=value:effect`, or `key:effect`."""
    return f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"


def tolerates(toleration: schema.Toleration, taint: schema.Taint) -> bool:
    """Whether one toleration covers one taint."""
    if toleration.effect not in {"", taint.effect} or toleration.key not in {"", taint.key}:
        return False
    return toleration.operator == "Exists" or toleration.value == taint.value
