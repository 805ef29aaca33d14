"""Says what a node publishes, and why a device is tainted or absent; `pydra slices`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from pydra.devices import TaintEffect
from pydra.diagnosis import Finding, Level
from pydra.diagnosis.cluster_reader import EventLine, Reader
from pydra.kube.api_resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, JsonObject
from pydra.kube.client import KubeClient
from pydra.message_text import list_names

_TAINTS = {
    "unhealthy": "the backend reports the device as unhealthy: the Event DeviceUnhealthy of the node says why",
    "stale": "the backend cannot discover its devices: the Event DevicesStale of the node or the agent's log says why",
    "quarantined": "a claim with the device ended the backend's process again and again: the Event BackendDied of the "
    "node says where; delete that claim's pod, or upgrade the backend",
}
"""What to do about the agent's own taints, by the name behind the driver's."""


class PublishedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device in a slice; `claims` are those that it is allocated to, as far as they are known."""

    driver: str
    pool: str
    device: str
    slice: str
    taints: tuple[str, ...] = ()
    rules: Mapping[str, str] = {}
    """The DeviceTaintRules that give taints, by the taint."""
    claims: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """What an allocation names the device by."""
        return self.driver, self.pool, self.device


class PublishedPool(msgspec.Struct, frozen=True, kw_only=True):
    """A pool: `slices` of its newest generation, of `expected`."""

    driver: str
    pool: str
    generation: int
    slices: int
    expected: int
    devices: int


class SliceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a node publishes, or all of them. The Events are the node's that the agent wrote, the oldest first."""

    node: str
    pools: tuple[PublishedPool, ...]
    devices: tuple[PublishedDevice, ...]
    findings: tuple[Finding, ...]
    events: tuple[EventLine, ...]


async def report_slices(client: KubeClient, node: str) -> SliceReport:
    """Read what the node's drivers publish, and the agent's Events about it; of all nodes if `node` is empty.

    Raises:
        KubeError: the slices cannot be listed.
    """
    reader = Reader(client)
    slices = (await client.list(RESOURCE_SLICES, field_selector=f"spec.nodeName={node}" if node else "")).items
    holders = find_holders(await reader.list(RESOURCE_CLAIMS))
    pools, devices = parse_slices(slices, holders, await reader.list_taint_rules())
    events = [event for event in await reader.list_events("Node", node) if event.source == "pydra-agent"]
    nodes = [node] if node else [one["metadata"]["name"] for one in await reader.list(NODES)]
    served = {one["spec"].get("nodeName") for one in slices}
    silent = [one for one in nodes if one not in served]
    findings = [*_judge_silent(silent), *_judge(pools, devices), *reader.findings]
    return SliceReport(node=node, pools=pools, devices=devices, findings=tuple(findings), events=tuple(events))


def parse_slices(
    slices: Iterable[JsonObject],
    holders: Mapping[tuple[str, str, str], Sequence[str]],
    rules: Sequence[JsonObject] = (),
) -> tuple[tuple[PublishedPool, ...], tuple[PublishedDevice, ...]]:
    """Return pools and devices of the slices, with the taints that DeviceTaintRules give them.

    Of each pool the newest generation counts, as for the scheduler.
    """
    by_pool: dict[tuple[str, str], list[JsonObject]] = {}
    for body in sorted(slices, key=lambda body: str(body["metadata"]["name"])):
        by_pool.setdefault((body["spec"]["driver"], body["spec"]["pool"]["name"]), []).append(body)
    pools: list[PublishedPool] = []
    devices: list[PublishedDevice] = []
    for (driver, pool), bodies in sorted(by_pool.items()):
        generation = max(body["spec"]["pool"]["generation"] for body in bodies)
        current = [body for body in bodies if body["spec"]["pool"]["generation"] == generation]
        own = [
            _build_device((driver, pool, device["name"]), body["metadata"]["name"], device, holders, rules)
            for body in current
            for device in body["spec"].get("devices") or ()
        ]
        devices += own
        expected = current[0]["spec"]["pool"]["resourceSliceCount"]
        pools.append(
            PublishedPool(
                driver=driver,
                pool=pool,
                generation=generation,
                slices=len(current),
                expected=expected,
                devices=len(own),
            )
        )
    return tuple(pools), tuple(devices)


def _build_device(
    key: tuple[str, str, str],
    name: str,
    device: JsonObject,
    holders: Mapping[tuple[str, str, str], Sequence[str]],
    rules: Sequence[JsonObject],
) -> PublishedDevice:
    given = {_format_taint(one["spec"]["taint"]): one["metadata"]["name"] for one in rules if _selects(one, key)}
    return PublishedDevice(
        driver=key[0],
        pool=key[1],
        device=key[2],
        slice=name,
        taints=(*map(_format_taint, device.get("taints") or ()), *given),
        rules=given,
        claims=tuple(holders.get(key, ())),
    )


def _selects(rule: JsonObject, key: tuple[str, str, str]) -> bool:
    """Return whether a DeviceTaintRule selects the device; one without a selector selects none."""
    wanted: JsonObject | None = rule["spec"].get("deviceSelector")
    names = zip(("driver", "pool", "device"), key, strict=True)
    return wanted is not None and all(wanted.get(field) in (None, name) for field, name in names)


def find_holders(claims: Iterable[JsonObject]) -> dict[tuple[str, str, str], list[str]]:
    """Return the claims, as NAMESPACE/NAME, that each device is allocated to."""
    holders: dict[tuple[str, str, str], list[str]] = {}
    for claim in claims:
        name = f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
        for result in find_results(claim):
            names = holders.setdefault((result["driver"], result["pool"], result["device"]), [])
            if name not in names:
                names.append(name)
    return holders


def find_results(claim: JsonObject) -> Sequence[JsonObject]:
    """Return the devices in the status of a claim; none if it is not allocated."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results: Sequence[JsonObject] = (allocation.get("devices") or {}).get("results") or ()
    return results


def judge_taints(devices: Iterable[PublishedDevice]) -> Iterator[Finding]:
    """Yield what each taint means and what to do, devices with the same one together."""
    tainted: dict[tuple[str, str, str], list[str]] = {}
    for one in devices:
        for taint in one.taints:
            tainted.setdefault((one.driver, taint, one.rules.get(taint, "")), []).append(one.device)
    for (driver, taint, rule), names in sorted(tainted.items()):
        found = f"{list_names(names, 8)}: tainted {taint}"
        level = Level.NOTE if taint.endswith(f":{TaintEffect.NONE.value}") else Level.PROBLEM  # for information only
        yield Finding("taints", level, found, _advise(driver, taint, rule))


def _advise(driver: str, taint: str, rule: str) -> str:
    if rule:
        return f"DeviceTaintRule {rule} gives it; kubectl delete devicetaintrule {rule} ends that"
    own, _, name = taint.partition("=")[0].partition(":")[0].partition("/")
    advice = _TAINTS.get(name, "") if own == driver else ""
    return advice or "the taint is the backend's own: its documentation says what it means"


def _judge_silent(nodes: Sequence[str]) -> Iterator[Finding]:
    advice = "is the name right (kubectl get nodes), and is an agent ready there? On the node: pydra doctor"
    for node in nodes:
        yield Finding("slices", Level.PROBLEM, f"node {node} publishes nothing", advice)


def _judge(pools: Sequence[PublishedPool], devices: Sequence[PublishedDevice]) -> Iterator[Finding]:
    for pool in pools:
        subject = f"pool {pool.pool}"
        if pool.slices != pool.expected:
            found = f"driver {pool.driver} has published {pool.slices} of {pool.expected} slices; the scheduler waits"
            advice = "it is being published; if it stays so, the Event PublishFailed of the node says why"
            yield Finding(subject, Level.PROBLEM, found, advice)
        else:
            found = f"{pool.driver}: devices {pool.devices}, slices {pool.slices}, generation {pool.generation}"
            yield Finding(subject, Level.OK, found)
    yield from judge_taints(devices)


def _format_taint(taint: JsonObject) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"
