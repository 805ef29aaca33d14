"""What CDI devices changed in a container's configuration, in words: long lists by their first items. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydra_dev.cdi_specs import Hook, Mount
from pydra_dev.oci import OciSpec

LONG, SHOWN = 6, 3
"""A list of more items than LONG is told by its first SHOWN."""


def describe_changes(before: OciSpec, after: OciSpec) -> tuple[str, ...]:
    """One line for each thing that differs, in the order of the configuration; one for many mounts of a directory."""
    added = [f"env      {one}" for one in after.env if one not in before.env]
    added += [
        f"device   {one.path} ({one.type} {one.major}:{one.minor}, {one.access or 'no access'})"
        for one in after.devices
        if one not in before.devices
    ]
    added += _describe_mounts(one for one in after.mounts if one not in before.mounts)
    added += [f"hook     {_describe_hook(one)}" for one in after.hooks[len(before.hooks) :]]
    added += [
        f"network  {one.host_interface_name} as {one.name}"
        for one in after.net_devices
        if one not in before.net_devices
    ]
    if after.intel_rdt != before.intel_rdt:
        added.append(f"rdt      {after.intel_rdt}")
    added += [f"gid      {gid}" for gid in after.additional_gids if gid not in before.additional_gids]
    return tuple(added)


def shorten(value: Any) -> Any:
    """Plain JSON with the ends of its long lists counted instead."""
    if isinstance(value, Mapping):
        return {key: shorten(item) for key, item in value.items()}
    if isinstance(value, list):
        shown = value if len(value) <= LONG else [*value[:SHOWN], f"... and {len(value) - SHOWN} more"]
        return [shorten(item) for item in shown]
    return value


def _describe_mounts(mounts: Iterable[Mount]) -> Iterator[str]:
    """Those of one directory, from one directory and with the same options, together."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[Mount]] = {}
    for one in mounts:
        where = os.path.dirname(one.container_path), os.path.dirname(one.host_path), one.options
        groups.setdefault(where, []).append(one)
    for (inside, outside, options), found in groups.items():
        if len(found) <= LONG:
            yield from (f"mount    {one.container_path} from {one.host_path} ({','.join(options)})" for one in found)
            continue
        names = ", ".join(os.path.basename(one.container_path) for one in found[:SHOWN])
        what = f"{len(found)} in {inside} from {outside} ({','.join(options)})"
        yield f"mount    {what}: {names}, and {len(found) - SHOWN} more"


def _describe_hook(hook: Hook) -> str:
    arguments = hook.args or (hook.path,)
    rest = "" if len(arguments) <= LONG else f" ... and {len(arguments) - LONG} more arguments"
    return f"{hook.hook_name} {' '.join(arguments[:LONG])}{rest}"
