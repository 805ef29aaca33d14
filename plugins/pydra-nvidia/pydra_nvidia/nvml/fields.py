"""NVML's field values: many facts of one GPU in one call, each with its own error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from pydra_nvidia.nvml.calls import Nvml

Field: TypeAlias = int | tuple[int, int]
"""A field's id, or that and its scope: the number of a link."""

_UNION = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The member of the union for each value type, by nvmlValueType_t."""


def read_fields(nvml: Nvml, handle: Any, fields: Sequence[Field], *, subject: str = "") -> tuple[float | None, ...]:
    """The fields' values in their order; None for one that this GPU or driver does not tell."""
    if not fields:
        return ()
    values = nvml.look("nvmlDeviceGetFieldValues", handle, list(fields), subject=subject)
    if values is None:
        return (None,) * len(fields)
    return tuple(_value(one) for one in values)


def _value(one: Any) -> float | None:
    if one.nvmlReturn or one.valueType >= len(_UNION):
        return None
    return getattr(one.value, _UNION[one.valueType])  # type: ignore[no-any-return]
