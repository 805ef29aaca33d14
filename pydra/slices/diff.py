"""The decision: from the wanted pool and the observed slices to the fewest writes. Pure.

Kubernetes' rules for pools (KEP-4381, resourceslice controller): consumers use the highest generation only, and a
pool is whole when there are `resourceSliceCount` slices of it. One write alone keeps the generation: the pool is
whole before and after. More than one write needs a new generation, which touches every slice, so that nobody
allocates from a mixture. Obsolete slices go first, then updates, then creations, in the order of their index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from pydra.device_rules import check_references, is_pool_name
from pydra.devices import Pool
from pydra.kube.resources import RESOURCE_SLICES, JsonObject
from pydra.slices.build import WantedPool
from pydra.slices.compare import keep_times, same_content
from pydra.slices.index import build_generate_name, parse_index


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster-scoped object with which the slices are garbage collected: for a node's devices, the Node."""

    api_version: str = "v1"
    kind: str = "Node"
    name: str
    uid: str


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    """Delete the slice, if it still is the one that was looked at."""

    pool: str
    name: str
    uid: str
    resource_version: str


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """Replace the slice at `index`; the body carries the resourceVersion that was looked at."""

    index: int
    name: str
    body: JsonObject


class Create(msgspec.Struct, frozen=True, kw_only=True):
    """Create the slice at `index`."""

    index: int
    body: JsonObject


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Writes in the order in which they are to be made; empty when the API has what is wanted."""

    generation: int = 0
    deletes: tuple[Delete, ...] = ()
    updates: tuple[Update, ...] = ()
    creates: tuple[Create, ...] = ()

    @property
    def writes(self) -> tuple[Update | Create, ...]:
        """What follows the deletes."""
        return (*self.updates, *self.creates)

    def __len__(self) -> int:
        return len(self.deletes) + len(self.updates) + len(self.creates)


def plan_slices(wanted: WantedPool | None, observed: Iterable[JsonObject], *, owner: Owner | None = None) -> Plan:
    """What to write; `observed` are all slices of this driver and node, of whatever pool. None wants no slice."""
    slices = sorted(observed, key=lambda body: str(body["metadata"]["name"]))
    if wanted is None:
        return Plan(deletes=tuple(map(_build_delete, slices)))
    others = [body for body in slices if _pool(body).get("name") != wanted.name]
    ours = [body for body in slices if _pool(body).get("name") == wanted.name]
    published = max((_generation(body) for body in ours), default=0)
    matched, obsolete = _match(ours, published, len(wanted.slices))
    changed = [index for index, body in matched.items() if not _is_as_wanted(wanted, index, body)]
    missing = [index for index in range(len(wanted.slices)) if index not in matched]
    generation = _decide_generation(wanted.generation, published, writes=len(changed), missing=len(missing))
    known = [device for body in ours for device in body["spec"].get("devices") or ()]
    touched = matched if generation != published else changed
    return Plan(
        generation=generation,
        deletes=tuple(map(_build_delete, [*others, *obsolete])),
        updates=tuple(_build_update(wanted, index, generation, matched[index], known) for index in sorted(touched)),
        creates=tuple(_build_create(wanted, index, generation, known, owner) for index in missing),
    )


def share_devices(wanted: WantedPool, observed: Iterable[JsonObject]) -> None:
    """Let observed slices that have the wanted devices refer to those: they are in memory once, not twice.

    Equal objects take the place of equal ones; 3 KiB for a device.
    """
    for body in observed:
        index = parse_index(body["metadata"]["name"], len(wanted.slices))
        if index is not None and index < len(wanted.slices):
            devices = wanted.slices[index].get("devices")
            if devices is not None and body["spec"].get("devices") == devices:
                body["spec"]["devices"] = devices


def check_pool(pool: Pool) -> tuple[str, ...]:
    """What makes a pool unusable as a whole; the API server would take it, and the scheduler then ignore all of it."""
    problems = []
    if not is_pool_name(pool.name):
        problems.append(f"pool name {pool.name!r} must be one or more DNS subdomains with / between, 253 bytes at most")
    problems += [f"counter set {name!r} is there twice" for name in _repeated(one.name for one in pool.counter_sets)]
    problems += [f"device {name!r} is there twice" for name in _repeated(one.name for one in pool.devices)]
    counters = {one.name: one.counters for one in pool.counter_sets}
    for device in pool.devices:
        problems += [f"device {device.name!r} {problem}" for problem in check_references(device, counters)]
    return tuple(problems)


def _match(slices: Sequence[JsonObject], published: int, count: int) -> tuple[dict[int, JsonObject], list[JsonObject]]:
    """Slices by the index in their name, and those that no index can have."""
    matched: dict[int, JsonObject] = {}
    obsolete: list[JsonObject] = []
    for body in slices:
        index = parse_index(body["metadata"]["name"], count)
        if _generation(body) < published or index is None or index >= count or index in matched:
            obsolete.append(body)
        else:
            matched[index] = body
    return matched, obsolete


def _is_as_wanted(wanted: WantedPool, index: int, body: JsonObject) -> bool:
    count = _pool(body).get("resourceSliceCount")
    return count == len(wanted.slices) and same_content({**wanted.scope, **wanted.slices[index]}, body["spec"])


def _decide_generation(wish: int, published: int, *, writes: int, missing: int) -> int:
    if wish > published:
        return wish
    return published if not missing and writes <= 1 else published + 1


def _build_spec(wanted: WantedPool, index: int, generation: int, known: Sequence[JsonObject]) -> JsonObject:
    content = dict(wanted.slices[index])
    if content.get("devices"):
        content["devices"] = keep_times(content["devices"], known)
    pool = {"name": wanted.name, "generation": generation, "resourceSliceCount": len(wanted.slices)}
    return {"driver": wanted.driver, "pool": pool, **wanted.scope, **content}


def _build_update(
    wanted: WantedPool, index: int, generation: int, body: JsonObject, known: Sequence[JsonObject]
) -> Update:
    replaced = {**body, "spec": _build_spec(wanted, index, generation, known)}
    return Update(index=index, name=body["metadata"]["name"], body=replaced)


def _build_create(
    wanted: WantedPool, index: int, generation: int, known: Sequence[JsonObject], owner: Owner | None
) -> Create:
    name = owner.name if owner is not None else ""
    metadata: JsonObject = {"generateName": build_generate_name(index, len(wanted.slices), wanted.driver, name)}
    if owner is not None:
        metadata["ownerReferences"] = [
            {"apiVersion": owner.api_version, "kind": owner.kind, "name": name, "uid": owner.uid, "controller": True}
        ]
    body: JsonObject = {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": RESOURCE_SLICES.kind,
        "metadata": metadata,
        "spec": _build_spec(wanted, index, generation, known),
    }
    return Create(index=index, body=body)


def _build_delete(body: JsonObject) -> Delete:
    metadata = body["metadata"]
    return Delete(
        pool=_pool(body).get("name", ""),
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
    )


def _pool(body: JsonObject) -> JsonObject:
    return body["spec"].get("pool") or {}


def _generation(body: JsonObject) -> int:
    return int(_pool(body).get("generation") or 0)


def _repeated(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return sorted({name for name in names if name in seen or seen.add(name)})  # type: ignore[func-returns-value]
