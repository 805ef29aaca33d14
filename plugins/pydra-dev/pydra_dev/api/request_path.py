"""What the path of a request points at: a kind, a namespace, an object and a subresource. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from pydra_dev.api.kinds import KINDS, Kind

ByPath: TypeAlias = Mapping[tuple[str, str, str], Kind]


def index_paths(kinds: Iterable[Kind]) -> ByPath:
    """The kinds by group, version and plural, as they stand in paths."""
    return {(kind.group, kind.version, kind.plural): kind for kind in kinds}


BY_PATH = index_paths(KINDS)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a path points at; `name` empty: the whole collection; `namespace` empty: all of them."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse_path(path: str, kinds: ByPath = BY_PATH) -> Target | None:
    """`/api/v1/namespaces/ns/pods/p/status` and its like to a target; None when nothing is served there."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and (group, version, rest[2]) in kinds:
        namespace, rest = rest[1], rest[2:]
    kind = kinds.get((group, version, rest[0]))
    if kind is None or bool(namespace) > kind.namespaced or "" in rest or len(rest) > 3:
        return None
    name, subresource = (*rest[1:], "", "")[:2]
    if subresource and subresource not in kind.subresources:
        return None
    if name and kind.namespaced and not namespace:
        return None
    return Target(kind=kind, namespace=namespace, name=name, subresource=subresource)
