"""Hand-written worlds, one for each rule of the allocator that generated ones meet too rarely, or would not show.

Their outcomes are recorded with those of `allocation_worlds`. The families are those of the structured allocator's own
tests (`allocatortesting` in k8s.io/dynamic-resource-allocation, Kubernetes 1.36).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JsonObject = dict[str, Any]
DRIVER, NODE = "a.example.com", "alloc-node"
TAINT = {"key": "example.com/sick", "value": "yes", "effect": "NoSchedule"}


def world(
    *slices: JsonObject, claims: list[JsonObject], classes: JsonObject | None = None, held: Any = ()
) -> JsonObject:
    """A world with one pod."""
    return {
        "node": {"metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE, "zone": "a"}}, "spec": {}},
        "slices": [
            {"metadata": {"name": f"s{index}"}, "spec": spec} if "spec" not in spec else spec
            for index, spec in enumerate(slices)
        ],
        "classes": {"any": {}, **(classes or {})},
        "held": [
            {"allocation": {"devices": {"results": [{"request": "r", "driver": DRIVER, "pool": "pool", **result}]}}}
            for result in held
        ],
        "claims": [
            {"metadata": {"name": f"claim-{index}"}, "spec": {"devices": devices}}
            for index, devices in enumerate(claims)
        ],
    }


def pool(
    *devices: JsonObject | str, count: int = 1, generation: int = 1, name: str = "pool", **spec: Any
) -> JsonObject:
    """The spec of a slice of a pool."""
    listed = [{"name": one} if isinstance(one, str) else one for one in devices]
    nodes = {} if {"allNodes", "nodeSelector", "perDeviceNodeSelection"} & set(spec) else {"nodeName": NODE}
    own = {"name": name, "generation": generation, "resourceSliceCount": count}
    return {"driver": DRIVER, "pool": own, **({"devices": listed} if listed else {}), **nodes, **spec}


def ask(name: str = "r", **exactly: Any) -> JsonObject:
    """A request for one device of any kind, unless `exactly` says otherwise."""
    return {"name": name, "exactly": {"deviceClassName": "any", **exactly}}


def claim(*requests: JsonObject, **devices: Any) -> JsonObject:
    """What a claim asks for."""
    return {"requests": list(requests), **devices}


def sub(name: str, **wish: Any) -> JsonObject:
    """An alternative of a request."""
    return {"name": name, "deviceClassName": "any", **wish}


def cel(expression: str) -> list[JsonObject]:
    """A list of one selector."""
    return [{"cel": {"expression": expression}}]


def numa(name: str, node: int, **extra: Any) -> JsonObject:
    """A device on a NUMA node."""
    return {"name": name, "attributes": {"example.com/numa": {"int": node}}, **extra}


def draws(name: str, amount: str, **extra: Any) -> JsonObject:
    """A partition."""
    return {"name": name, "consumesCounters": [{"counterSet": "c", "counters": {"memory": {"value": amount}}}], **extra}


def counters(amount: str = "80Gi", **spec: Any) -> JsonObject:
    """The slice with a pool's counters."""
    sets = [{"name": "c", "counters": {"memory": {"value": amount}}}]
    return pool(sharedCounters=sets, **{"count": 2, **spec})


def shared(name: str, policy: JsonObject | None = None, value: str = "80Gi", **extra: Any) -> JsonObject:
    """A device that can be given to several claims."""
    memory = {"value": value, **({"requestPolicy": policy} if policy else {})}
    return {"name": name, "allowMultipleAllocations": True, "capacity": {"memory": memory}, **extra}


def memory(amount: str) -> JsonObject:
    """A request's share."""
    return {"capacity": {"requests": {"memory": amount}}}


def opaque(**parameters: Any) -> JsonObject:
    """Configuration for the driver."""
    return {"opaque": {"driver": DRIVER, "parameters": parameters}}


ALL: JsonObject = {"allocationMode": "All"}
MATCH = {"matchAttribute": "example.com/numa"}
DISTINCT = {"distinctAttribute": "example.com/numa"}
NUMAS = [numa("d0", 0), numa("d1", 1), numa("d2", 1), numa("d3", 0)]
RANGE = {"default": "10Gi", "validRange": {"min": "10Gi", "step": "5Gi", "max": "70Gi"}}
VALUES = {"default": "10Gi", "validValues": ["10Gi", "20Gi", "40Gi"]}
BINDING = {"bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]}
ELSEWHERE = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}]}
HERE = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}

FAMILIES: Mapping[str, JsonObject] = {
    "slices-are-tried-by-name-and-devices-as-listed": world(
        {"metadata": {"name": "z"}, "spec": pool("d0", count=2)},
        {"metadata": {"name": "b"}, "spec": pool("z9", "a0", count=2)},
        claims=[claim(ask())],
    ),
    "pools-are-tried-by-name": world(pool("d0", name="z"), pool("d0", name="a"), claims=[claim(ask())]),
    "pools-with-binding-conditions-come-last": world(
        pool({"name": "d0", **BINDING}, "d1", name="a"), pool("d0", name="b"), claims=[claim(ask(count=1), ask("s"))]
    ),
    "an-incomplete-pool-gives-nothing": world(pool("d0", count=2), pool("d1", name="other"), claims=[claim(ask())]),
    "all-devices-wait-for-an-incomplete-pool": world(
        pool("d0", count=2), pool("d1", name="other"), claims=[claim(ask(**ALL))]
    ),
    "all-devices-wait-for-an-invalid-pool": world(
        pool("d0", count=2), pool("d0", count=2), pool("d1", name="other"), claims=[claim(ask(**ALL))]
    ),
    "a-device-twice-makes-its-pool-invalid": world(pool("d0", count=2), pool("d0", count=2), claims=[claim(ask())]),
    "an-unknown-counter-makes-its-pool-invalid": world(pool(draws("d0", "1Gi")), claims=[claim(ask())]),
    "older-generations-are-ignored": world(pool("old"), pool("new", generation=2), claims=[claim(ask())]),
    "a-newer-generation-for-another-node-replaces-an-incomplete-pool": world(
        pool("old", count=2), pool("new", generation=2, nodeName="else"), claims=[claim(ask(**ALL))]
    ),
    "a-complete-pool-is-used-though-another-node-has-a-newer-one": world(
        pool("old"), pool("new", generation=2, nodeName="else"), claims=[claim(ask())]
    ),
    "a-pool-may-be-complete-with-slices-of-other-nodes": world(
        pool("d0", count=2), pool("d1", count=2, nodeName="else"), claims=[claim(ask(**ALL))]
    ),
    "the-number-of-results-is-limited": world(pool(*(f"d{i}" for i in range(40))), claims=[claim(ask(count=33))]),
    "the-limit-counts-all-requests": world(
        pool(*(f"d{i}" for i in range(40))), claims=[claim(ask(count=20), ask("s", count=13))]
    ),
    "all-devices-may-exceed-the-limit": world(pool(*(f"d{i}" for i in range(33))), claims=[claim(ask(**ALL))]),
    "an-alternative-within-the-limit-is-chosen": world(
        pool(*(f"d{i}" for i in range(40))),
        claims=[claim(ask(count=20), {"name": "s", "firstAvailable": [sub("x", count=13), sub("y", count=12)]})],
    ),
    "each-claim-has-its-own-limit": world(
        pool(*(f"d{i}" for i in range(40))), claims=[claim(ask(count=20)), claim(ask(count=20))]
    ),
    "all-means-at-least-one": world(pool("d0"), claims=[claim(ask(**ALL, selectors=cel("false")))]),
    "all-means-every-one": world(pool("d0", "d1"), held=[{"device": "d1"}], claims=[claim(ask(**ALL))]),
    "all-skips-what-has-not-the-capacity": world(
        pool(
            {"name": "d0", "capacity": {"memory": {"value": "1Gi"}}},
            {"name": "d1", "capacity": {"memory": {"value": "4Gi"}}},
        ),
        claims=[claim(ask(**ALL, **memory("2Gi")))],
    ),
    "all-and-a-constraint-that-forbids-it-is-a-mistake": world(
        pool(*NUMAS), claims=[claim(ask(**ALL), constraints=[MATCH])]
    ),
    "an-alternative-with-all-is-a-mistake-too": world(
        pool(*NUMAS),
        claims=[claim({"name": "r", "firstAvailable": [sub("x", **ALL), sub("y")]}, constraints=[MATCH])],
    ),
    "a-broken-selector-ends-the-search": world(
        pool("d0", numa("d1", 1)), claims=[claim(ask(selectors=cel('device.attributes["example.com"].numa == 1')))]
    ),
    "a-broken-selector-does-not-matter-where-it-is-not-needed": world(
        pool(numa("d0", 1), "d1"), claims=[claim(ask(selectors=cel('device.attributes["example.com"].numa == 1')))]
    ),
    "a-broken-selector-of-a-class-ends-the-search": world(
        pool("d0"),
        classes={"picky": {"selectors": cel(f'device.attributes["{DRIVER}"].none')}},
        claims=[claim(ask(deviceClassName="picky"))],
    ),
    "an-unused-alternative-may-be-broken": world(
        pool("d0"),
        claims=[
            claim(
                {
                    "name": "r",
                    "firstAvailable": [sub("x"), sub("y", selectors=cel(f'device.attributes["{DRIVER}"].none'))],
                }
            )
        ],
    ),
    "the-class-is-missing": world(pool("d0"), claims=[claim(ask(deviceClassName="none"))]),
    "the-class-of-an-alternative-is-missing": world(
        pool("d0"), claims=[claim({"name": "r", "firstAvailable": [sub("x"), sub("y", deviceClassName="none")]})]
    ),
    "matching-devices-are-found-by-going-back": world(pool(*NUMAS), claims=[claim(ask(count=2), constraints=[MATCH])]),
    "matching-holds-across-requests-and-alternatives": world(
        pool(*NUMAS),
        claims=[
            claim(
                ask(),
                {"name": "s", "firstAvailable": [sub("x", count=4), sub("y")]},
                constraints=[{**MATCH, "requests": ["r", "s/y"]}],
            )
        ],
    ),
    "a-constraint-names-the-parent-of-alternatives": world(
        pool(*NUMAS),
        claims=[
            claim(ask(), {"name": "s", "firstAvailable": [sub("x")]}, constraints=[{**MATCH, "requests": ["s", "r"]}])
        ],
    ),
    "a-device-without-the-attribute-cannot-match": world(
        pool("plain", *NUMAS), claims=[claim(ask(), constraints=[MATCH])]
    ),
    "an-attribute-without-a-domain-is-the-driver-s": world(
        pool({"name": "d0"}, {"name": "d1", "attributes": {"slot": {"int": 1}}}),
        claims=[claim(ask(), constraints=[{"matchAttribute": f"{DRIVER}/slot"}])],
    ),
    "distinct-devices-differ": world(pool(*NUMAS), claims=[claim(ask(), ask("s"), constraints=[DISTINCT])]),
    "distinct-remembers-one-device-of-a-request": world(
        pool(*NUMAS), claims=[claim(ask(count=3), constraints=[DISTINCT])]
    ),
    "distinct-keeps-a-device-that-is-shared-from-being-taken-twice": world(
        pool(
            shared("d0", RANGE, attributes={"example.com/numa": {"int": 0}}),
            shared("d1", RANGE, attributes={"example.com/numa": {"int": 1}}),
        ),
        claims=[claim(ask(), ask("s"), constraints=[DISTINCT])],
    ),
    "an-int-and-a-string-do-not-match": world(
        pool(numa("d0", 1), {"name": "d1", "attributes": {"example.com/numa": {"string": "1"}}}),
        claims=[claim(ask(count=2), constraints=[MATCH])],
    ),
    "partitions-draw-from-one-counter": world(
        counters(),
        pool(draws("whole", "80Gi"), draws("half-0", "40Gi"), draws("half-1", "40Gi"), count=2),
        claims=[claim(ask(count=2))],
    ),
    "a-held-partition-has-drawn-already": world(
        counters(),
        pool(draws("whole", "80Gi"), draws("half-0", "40Gi"), draws("half-1", "40Gi"), count=2),
        held=[{"device": "half-1"}],
        claims=[claim(ask())],
    ),
    "a-partition-of-another-node-has-drawn-already": world(
        counters(count=3),
        pool(draws("d0", "40Gi"), draws("d1", "60Gi"), count=3),
        pool(draws("far", "40Gi"), count=3, nodeName="else"),
        held=[{"device": "far"}],
        claims=[claim(ask(selectors=cel("true")))],
    ),
    "counters-that-are-overdrawn-give-nothing": world(
        counters("40Gi"),
        pool(draws("d0", "40Gi"), draws("d1", "40Gi"), draws("d2", "1Gi"), count=2),
        held=[{"device": "d0"}, {"device": "d1"}],
        claims=[claim(ask())],
    ),
    "a-tainted-partition-has-drawn-all-the-same": world(
        counters(),
        pool(draws("d0", "60Gi", taints=[TAINT]), draws("d1", "40Gi"), draws("d2", "20Gi"), count=2),
        claims=[claim(ask())],
    ),
    "a-partition-against-a-constraint-has-drawn-all-the-same": world(
        counters(),
        pool(
            draws("d0", "20Gi", attributes=NUMAS[0]["attributes"]),
            draws("d1", "60Gi", attributes=NUMAS[1]["attributes"]),
            draws("d2", "40Gi", attributes=NUMAS[0]["attributes"]),
            count=2,
        ),
        claims=[claim(ask(count=2), constraints=[MATCH])],
    ),
    "counters-are-known-by-the-name-of-their-pool": world(
        counters(),
        pool(draws("d0", "80Gi"), count=2),
        {**counters(), "driver": "b.example.com"},
        {**pool(draws("d0", "80Gi"), count=2), "driver": "b.example.com"},
        claims=[claim(ask(count=2))],
    ),
    "a-partition-with-admin-access-draws": world(
        counters(),
        pool(draws("d0", "80Gi"), draws("d1", "40Gi"), count=2),
        claims=[claim(ask(adminAccess=True), ask("s"))],
    ),
    "admin-access-takes-what-is-held": world(
        pool("d0"), held=[{"device": "d0"}], claims=[claim(ask(adminAccess=True))]
    ),
    "admin-access-of-others-holds-nothing": world(
        pool("d0"), held=[{"device": "d0", "adminAccess": True}], claims=[claim(ask())]
    ),
    "admin-access-keeps-a-device-from-the-rest-of-the-pod": world(
        pool("d0", "d1"), claims=[claim(ask(adminAccess=True)), claim(ask())]
    ),
    "one-claim-has-a-device-once-with-admin-access": world(
        pool("d0"), claims=[claim(ask(adminAccess=True), ask("s", adminAccess=True))]
    ),
    "two-claims-have-a-device-with-admin-access": world(
        pool("d0"), claims=[claim(ask(adminAccess=True)), claim(ask(adminAccess=True))]
    ),
    "admin-access-to-all": world(
        pool("d0", "d1"), held=[{"device": "d1"}], claims=[claim(ask(**ALL, adminAccess=True))]
    ),
    "admin-access-to-a-shared-device-has-a-share": world(
        pool(shared("d0", RANGE)), claims=[claim(ask(adminAccess=True))]
    ),
    "admin-access-does-not-tolerate": world(
        pool({"name": "d0", "taints": [TAINT]}), claims=[claim(ask(adminAccess=True))]
    ),
    "a-share-is-rounded-up-to-a-step": world(pool(shared("d0", RANGE)), claims=[claim(ask(**memory("12Gi")))]),
    "a-share-is-at-least-the-minimum": world(pool(shared("d0", RANGE)), claims=[claim(ask(**memory("1Gi")))]),
    "a-share-is-at-most-the-maximum": world(pool(shared("d0", RANGE)), claims=[claim(ask(**memory("71Gi")))]),
    "a-share-without-a-size-is-the-default": world(pool(shared("d0", RANGE)), claims=[claim(ask())]),
    "a-share-without-a-policy-is-everything": world(pool(shared("d0")), claims=[claim(ask())]),
    "a-share-without-a-policy-has-its-size": world(pool(shared("d0")), claims=[claim(ask(**memory("1500M")))]),
    "a-share-of-zero": world(pool(shared("d0")), claims=[claim(ask(**memory("0")))]),
    "a-share-is-one-of-the-values": world(pool(shared("d0", VALUES)), claims=[claim(ask(**memory("11Gi")))]),
    "a-share-is-at-most-the-last-value": world(pool(shared("d0", VALUES)), claims=[claim(ask(**memory("41Gi")))]),
    "a-share-of-what-there-is-not": world(
        pool(shared("d0")), claims=[claim(ask(capacity={"requests": {"cores": "1"}}))]
    ),
    "shares-add-up": world(
        pool(shared("d0"), shared("d1")),
        held=[
            {
                "device": "d0",
                "shareID": f"00000000-0000-4000-8000-00000000000{i}",
                "consumedCapacity": {"memory": "30Gi"},
            }
            for i in (1, 2)
        ],
        claims=[claim(ask(**memory("20Gi")), ask("s", **memory("1Gi")))],
    ),
    "one-request-has-a-shared-device-once": world(pool(shared("d0", RANGE)), claims=[claim(ask(count=2))]),
    "two-requests-have-shares-of-one-device": world(pool(shared("d0", RANGE)), claims=[claim(ask(), ask("s"))]),
    "two-claims-have-shares-of-one-device": world(pool(shared("d0", RANGE)), claims=[claim(ask()), claim(ask())]),
    "a-device-that-was-given-whole-has-no-shares": world(
        pool(shared("d0"), shared("d1")), held=[{"device": "d0"}], claims=[claim(ask(**memory("1Gi")))]
    ),
    "all-shared-devices": world(pool(shared("d0", RANGE), shared("d1")), claims=[claim(ask(**ALL, **memory("20Gi")))]),
    "a-whole-device-with-enough-capacity": world(
        pool(
            {"name": "d0", "capacity": {"memory": {"value": "1Gi"}}},
            {"name": "d1", "capacity": {"memory": {"value": "4Gi"}}},
        ),
        claims=[claim(ask(**memory("2Gi")))],
    ),
    "an-alternative-with-a-share": world(
        pool(shared("d0", RANGE)),
        claims=[claim({"name": "r", "firstAvailable": [sub("x", **memory("75Gi")), sub("y", **memory("25Gi"))]})],
    ),
    "a-shared-partition-draws-once": world(
        counters("40Gi"),
        pool(shared("d0", RANGE, **{k: v for k, v in draws("d0", "40Gi").items() if k != "name"}), count=2),
        claims=[claim(ask(), ask("s"))],
    ),
    "a-taint-needs-a-toleration": world(pool({"name": "d0", "taints": [TAINT]}, "d1"), claims=[claim(ask())]),
    "a-tolerated-taint": world(
        pool({"name": "d0", "taints": [TAINT]}, "d1"),
        claims=[claim(ask(tolerations=[{"key": "example.com/sick", "operator": "Exists"}]))],
    ),
    "a-taint-without-effect": world(
        pool({"name": "d0", "taints": [{**TAINT, "effect": "None"}]}), claims=[claim(ask())]
    ),
    "the-first-alternative-that-fits": world(
        pool("d0", "d1", "d2"),
        claims=[claim({"name": "r", "firstAvailable": [sub("x", count=4), sub("y", count=2), sub("z")]})],
    ),
    "an-alternative-is-given-up-for-a-later-request": world(
        pool("d0", "d1", "d2"),
        claims=[claim({"name": "r", "firstAvailable": [sub("x", count=3), sub("y", count=2)]}, ask("s"))],
    ),
    "configuration-of-classes-comes-first": world(
        pool("d0", "d1", "d2"),
        classes={"plain": {"config": [opaque(n=1)]}, "more": {"config": [opaque(n=2), opaque(n=3)]}},
        claims=[
            claim(
                ask("a", deviceClassName="more"),
                ask("b", deviceClassName="plain"),
                {"name": "c", "firstAvailable": [sub("x", count=9), sub("y", deviceClassName="more")]},
                config=[
                    {**opaque(n=4), "requests": ["a", "c/y"]},
                    {**opaque(n=5), "requests": ["c/x"]},
                    opaque(n=6),
                    {**opaque(n=7), "requests": ["c"]},
                    {**opaque(n=8), "requests": ["c", "c/y"]},
                ],
            )
        ],
    ),
    "an-allocation-for-every-node": world(pool("d0", allNodes=True), claims=[claim(ask())]),
    "an-allocation-for-selected-nodes": world(
        pool("d0", nodeSelector=HERE), pool("d0", nodeSelector=HERE, name="other"), claims=[claim(ask(count=2))]
    ),
    "a-device-that-binds-to-its-node": world(
        pool({"name": "d0", "bindsToNode": True}, allNodes=True), claims=[claim(ask())]
    ),
    "devices-that-choose-their-nodes": world(
        pool(
            {"name": "d0", "nodeName": "else"},
            {"name": "d1", "nodeSelector": ELSEWHERE},
            {"name": "d2", "nodeSelector": HERE},
            {"name": "d3", "allNodes": True},
            perDeviceNodeSelection=True,
        ),
        claims=[claim(ask(count=2))],
    ),
    "claims-of-a-pod-are-allocated-in-their-order": world(
        pool("d0", "d1", "d2"), claims=[claim(ask(count=2)), claim(ask())]
    ),
    "an-earlier-claim-goes-back-for-a-later-one": world(
        pool(numa("d0", 1), numa("d1", 0)),
        claims=[claim(ask()), claim(ask(selectors=cel('device.attributes["example.com"].numa == 1')))],
    ),
}
