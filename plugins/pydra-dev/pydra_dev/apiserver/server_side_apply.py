"""Server-side apply: each manager's fields are what it applied last. Pure.

A field goes when the last manager that applied it leaves it out. Another manager's field is changed by force only.
Other writers of a field are its managers too, without a name here. Lists whose items have keys, as for strategic merge
patches, are joined by them; any other list is one value. Source: Kubernetes docs, Server-Side Apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from pydra_dev.api.errors import JsonObject, StatusError
from pydra_dev.apiserver.patches import MERGE_KEYS

CONTENT_TYPE = "application/apply-patch+yaml"

_KEYS: Mapping[str, tuple[str, ...]] = {
    **{name: (key,) for name, key in MERGE_KEYS.items()},
    "devices": ("driver", "device", "pool", "shareID"),
}
_OPTIONAL = frozenset({"shareID"})

_Key: TypeAlias = tuple[tuple[str, Any], ...]
Path: TypeAlias = tuple[str | _Key, ...]
"""The names of a field's parents and its own; an item of a joined list by its keys."""


def apply(live: JsonObject, applied: JsonObject, before: JsonObject, others: Iterable[JsonObject]) -> JsonObject:
    """The object with what is applied; `before` is what the manager applied last, `others` what other managers did."""
    wanted, owned = dict(_list_fields(applied)), dict(_list_fields(before))
    foreign = {path for other in others for path, _ in _list_fields(other)}
    kept = {path: value for path, value in _list_fields(live) if path not in owned or path in foreign}
    return _build_object({**kept, **wanted})


def find_conflict(
    live: JsonObject, applied: JsonObject, before: JsonObject, others: Mapping[str, JsonObject]
) -> StatusError | None:
    """The refusal of an apply without force that would change fields which are not as the manager applied them last."""
    present, owned = dict(_list_fields(live)), dict(_list_fields(before))
    changed = {
        path: present[path]
        for path, value in _list_fields(applied)
        if path in present and present[path] not in (value, owned.get(path))
    }
    if not changed:
        return None
    theirs = {who: dict(_list_fields(what)) for who, what in others.items()}
    managers = [who for who, what in theirs.items() if any(what.get(path) == value for path, value in changed.items())]
    count = f"{len(changed)} conflict{'s' if len(changed) > 1 else ''}"
    why = f'Apply failed with {count} with "{(managers or ["unknown"])[0]}": {", ".join(map(_spell, changed))}'
    return StatusError(409, "Conflict", why)


def _list_fields(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    keys = _KEYS.get(path[-1]) if path and isinstance(path[-1], str) else None
    if isinstance(value, dict) and value:
        for name, one in value.items():
            yield from _list_fields(one, (*path, name))
    elif isinstance(value, list) and value and keys and all(_is_item(one, keys) for one in value):
        for one in value:
            yield from _list_fields(one, (*path, tuple((name, one[name]) for name in keys if name in one)))
    elif value is not None and (value or not keys):
        yield path, value


def _is_item(value: Any, keys: tuple[str, ...]) -> bool:
    return isinstance(value, dict) and all(name in value or name in _OPTIONAL for name in keys)


def _build_object(fields: Mapping[Path, Any]) -> JsonObject:
    """Items come in the order of their first field."""
    tree: dict[Any, Any] = {}
    for path, value in fields.items():
        place = tree
        for part in path[:-1]:
            place = place.setdefault(part, {})
        if value != {} or path[-1] not in place:
            place[path[-1]] = {} if value == {} else value
    built: JsonObject = _build_value(tree)
    return built


def _build_value(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    built = {part: _build_value(one) for part, one in node.items()}
    if built and all(isinstance(part, tuple) for part in built):
        # What is left of an item without its keys belongs to nobody any more.
        return [{**one} for part, one in built.items() if all(name in one for name, _ in part)]
    return built


def _spell(path: Path) -> str:
    return "".join(
        f".{part}" if isinstance(part, str) else "[" + ",".join(f'{name}="{value}"' for name, value in part) + "]"
        for part in path
    )
