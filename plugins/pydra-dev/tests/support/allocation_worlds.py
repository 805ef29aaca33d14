"""Worlds to compare allocators on: slices, classes, held devices and the claims of one pod, made from a number.

A world is plain JSON, valid for kube-apiserver 1.36 with its default feature gates, so that the same one can be given
to a real scheduler (`record_allocations`) and to the embedded one. Most are small and crowded: what matters is which
of several solutions is found, and which almost-solution is refused.
"""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

JsonObject = dict[str, Any]
NODE = "alloc-node"
DRIVERS = ("a.example.com", "b.example.com")
TAINTS = (
    {"key": "example.com/sick", "value": "yes", "effect": "NoSchedule"},
    {"key": "example.com/sick", "value": "yes", "effect": "NoExecute"},
    {"key": "example.com/noted", "effect": "None"},
)
TOLERATIONS = (
    {"operator": "Exists"},
    {"key": "example.com/sick", "operator": "Equal", "value": "yes"},
    {"key": "example.com/sick", "operator": "Equal", "value": "no"},
    {"key": "example.com/sick", "operator": "Exists", "effect": "NoSchedule"},
)
KINDS = ("plain", "shares", "counters", "nodes", "many")


def build_world(seed: int) -> JsonObject:
    """The world of a number."""
    return _Builder(Random(seed), f"world-{seed}").build()


class _Builder:
    def __init__(self, random: Random, name: str) -> None:
        self.random = random
        self.name = name
        self.kind = random.choice(KINDS)
        self.uuids = 0

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def pick(self, *values: Any) -> Any:
        return self.random.choice(values)

    def build(self) -> JsonObject:
        slices = [one for driver in DRIVERS[: self.pick(1, 1, 2)] for one in self.pool(driver)]
        self.random.shuffle(slices)
        claims = [self.claim(f"claim-{index}") for index in range(self.pick(1, 1, 1, 2, 3))]
        return {
            "name": self.name,
            "node": {"metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE, "zone": "a"}}, "spec": {}},
            "slices": slices,
            "classes": {"any": {}, "picky": self.device_class()},
            "held": self.held(slices),
            "claims": claims,
        }

    def device_class(self) -> JsonObject:
        spec: JsonObject = {"selectors": [self.selector()]} if self.chance(0.5) else {}
        if self.chance(0.5):
            spec["config"] = [{"opaque": {"driver": DRIVERS[0], "parameters": {"from": "class"}}}]
        return spec

    def pool(self, driver: str) -> list[JsonObject]:
        name = self.pick("pool", "pool", f"pool-{driver[0]}")
        counters = self.kind == "counters"
        groups = [self.devices(driver) for _ in range(self.pick(1, 1, 2, 3))]
        if not self.chance(0.06):
            names = [f"d{index}" for index in range(sum(map(len, groups)))]
            self.random.shuffle(names)
            for device in (device for group in groups for device in group):
                device["name"] = names.pop()
        count = len(groups) + counters
        generation = self.pick(1, 1, 1, 2)
        pool = {"name": name, "generation": generation, "resourceSliceCount": count + self.chance(0.05)}
        slices = [{"driver": driver, "pool": pool, "devices": group, **self.nodes(group)} for group in groups]
        if counters:
            slices.append({"driver": driver, "pool": pool, "sharedCounters": self.counter_sets(), "nodeName": NODE})
        if self.chance(0.1):
            old = {**pool, "generation": generation - 1, "resourceSliceCount": 1}
            slices.append({"driver": driver, "pool": old, "devices": [{"name": "old"}], "nodeName": NODE})
        if self.chance(0.05):
            newer = {**pool, "generation": generation + 1, "resourceSliceCount": 1}
            slices.append(
                {"driver": driver, "pool": newer, "devices": [{"name": "new"}], "nodeName": self.pick(NODE, "else")}
            )
        letters = self.random.sample("abcdefghij", len(slices))
        return [
            {"metadata": {"name": f"{letter}-{driver[0]}-{index}"}, "spec": spec}
            for index, (letter, spec) in enumerate(zip(letters, slices, strict=True))
        ]

    def nodes(self, devices: list[JsonObject]) -> JsonObject:
        if self.kind != "nodes" or self.chance(0.3):
            return {"nodeName": NODE}
        if self.chance(0.3):
            for device in devices:
                device.update(self.pick({"nodeName": NODE}, {"nodeName": "else"}, {"allNodes": True}, self.zone()))
            return {"perDeviceNodeSelection": True}
        return self.pick({"nodeName": "else"}, {"allNodes": True}, self.zone())  # type: ignore[no-any-return]

    def zone(self) -> JsonObject:
        requirement = {"key": "zone", "operator": self.pick("In", "In", "NotIn"), "values": ["a", "b"]}
        extra = [{"key": "kubernetes.io/hostname", "operator": "Exists"}] if self.chance(0.5) else []
        return {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [requirement, *extra]}]}}

    def devices(self, driver: str) -> list[JsonObject]:
        count = self.random.randint(6, 14) if self.kind == "many" else self.random.randint(1, 5)
        devices = [self.device(f"d{index}", driver) for index in range(count)]
        if self.kind != "many" and self.chance(0.1):
            for device in devices:
                device |= {"bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]}
        return devices

    def device(self, name: str, driver: str) -> JsonObject:
        attributes: JsonObject = {
            "model": {"string": self.pick("x1", "x2")},
            "index": {"int": self.random.randint(0, 3)},
            "version": {"version": self.pick("1.2.3", "1.10.0", "2.0.0-rc.1")},
            "example.com/numa": {"int": self.random.randint(0, 1)},
            f"{driver}/big": {"bool": self.chance(0.5)},
        }
        for attribute in self.random.sample(sorted(attributes), self.pick(0, 0, 0, 0, 0, 1)):
            del attributes[attribute]
        device: JsonObject = {"name": name, "attributes": attributes}
        device["capacity"] = {"memory": {"value": self.pick("4Gi", "8Gi", "16Gi")}}
        if self.chance(0.15):
            device["taints"] = [self.pick(*TAINTS)]
        if self.kind == "counters" and self.chance(0.9):
            device["consumesCounters"] = self.consumption()
        if self.kind == "shares" or (self.kind == "counters" and self.chance(0.15)):
            device |= self.shared()
        if self.chance(0.03):
            device["bindsToNode"] = True
        return device

    def shared(self) -> JsonObject:
        if self.chance(0.2):
            return {}
        policies: tuple[JsonObject, ...] = (
            {},
            {"default": "2Gi"},
            {"default": "1Gi", "validRange": {"min": "1Gi", "max": "8Gi"}},
            {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}},
            {"default": "2Gi", "validValues": ["1Gi", "2Gi", "4Gi"]},
        )
        memory: JsonObject = {"value": self.pick("8Gi", "16Gi", "16Gi")}
        policy = self.pick(*policies)
        if policy:
            memory["requestPolicy"] = policy
        capacity = {"memory": memory}
        if self.chance(0.4):
            capacity["cores"] = {
                "value": "100",
                "requestPolicy": {"default": "10", "validRange": {"min": "5", "step": "5"}},
            }
        return {"allowMultipleAllocations": True, "capacity": capacity}

    def counter_sets(self) -> list[JsonObject]:
        return [
            {"name": name, "counters": {"memory": {"value": self.pick("20Gi", "40Gi")}, "slots": {"value": "7"}}}
            for name in ("set-0", "set-1")
        ]

    def consumption(self) -> list[JsonObject]:
        names = ["set-0", "set-1"][: self.pick(1, 1, 1, 2)] if self.chance(0.7) else ["set-1"]
        return [
            {
                "counterSet": name,
                "counters": {
                    "memory": {"value": self.pick("5Gi", "10Gi", "20Gi")},
                    "slots": {"value": self.pick("1", "3")},
                },
            }
            for name in names
        ]

    def held(self, slices: list[JsonObject]) -> list[JsonObject]:
        held = []
        for one in slices:
            spec = one["spec"]
            for device in spec.get("devices") or ():
                if not self.chance(0.15):
                    continue
                result = {
                    "request": "r",
                    "driver": spec["driver"],
                    "pool": spec["pool"]["name"],
                    "device": device["name"],
                }
                if self.chance(0.1):
                    result["adminAccess"] = True
                elif device.get("allowMultipleAllocations"):
                    self.uuids += 1
                    consumed = {
                        name: self.pick("1Gi", "2Gi") if name == "memory" else "10" for name in device["capacity"]
                    }
                    result |= {"shareID": str(UUID(int=self.uuids)), "consumedCapacity": consumed}
                held.append({"allocation": {"devices": {"results": [result]}}})
        return held[:8]

    def claim(self, name: str) -> JsonObject:
        count = self.pick(1, 1, 2, 2, 3)
        requests = [self.request(f"r{index}") for index in range(count)]
        names = [request["name"] for request in requests]
        names += [f"{one['name']}/{sub['name']}" for one in requests for sub in one.get("firstAvailable") or ()]
        devices: JsonObject = {"requests": requests}
        if self.chance(0.45):
            devices["constraints"] = [self.constraint(names) for _ in range(self.pick(1, 1, 2))]
        if self.chance(0.3):
            devices["config"] = [self.config(names) for _ in range(self.pick(1, 2))]
        return {"metadata": {"name": name}, "spec": {"devices": devices}}

    def request(self, name: str) -> JsonObject:
        if self.chance(0.25):
            return {
                "name": name,
                "firstAvailable": [self.wish(f"s{index}", name=True) for index in range(self.pick(2, 3))],
            }
        exactly = self.wish("")
        if self.chance(0.06):
            exactly["adminAccess"] = True
        return {"name": name, "exactly": exactly}

    def wish(self, sub: str, *, name: bool = False) -> JsonObject:
        wish: JsonObject = {"deviceClassName": self.pick("any", "any", "picky"), "allocationMode": "ExactCount"}
        if name:
            wish["name"] = sub
        if self.chance(0.12):
            wish["allocationMode"] = "All"
        else:
            wish["count"] = self.pick(1, 1, 1, 2, 2, 3) if self.kind != "many" else self.pick(1, 2, 4, 8, 20)
        if self.chance(0.4):
            wish["selectors"] = [self.selector() for _ in range(self.pick(1, 1, 2))]
        if self.chance(0.2):
            wish["tolerations"] = [self.pick(*TOLERATIONS)]
        if self.kind == "shares" and self.chance(0.6):
            name_, amount = self.pick(
                ("memory", "1Gi"), ("memory", "3Gi"), ("memory", "1500Mi"), ("memory", "9Gi"), ("cores", "12")
            )
            wish["capacity"] = {"requests": {name_: amount}}
        return wish

    def selector(self) -> JsonObject:
        own = f'device.attributes["{self.pick(DRIVERS[0], DRIVERS[0], DRIVERS[1])}"]'
        expression = self.pick(
            "true",
            f'device.driver == "{self.pick(*DRIVERS)}"',
            f'{own}.?model.orValue("") == "x1"',
            f'{own}.model == "x2"' if self.chance(0.2) else "true",
            f'"index" in {own} && {own}.index >= 1',
            f'device.driver == "{DRIVERS[0]}" && {own}.?index.orValue(9) in [0, 2]',
            f"has({own}.big) && {own}.big",
            f'has({own}.version) && {own}.version.isGreaterThan(semver("1.9.0"))',
            'device.capacity[device.driver].memory.compareTo(quantity("8Gi")) >= 0',
            'cel.bind(c, device.capacity[device.driver], c.memory.isLessThan(quantity("10G")))',
            'device.attributes["example.com"].?numa.orValue(0) == 0',
            "device.allowMultipleAllocations",
            'sets.contains([1, 2, 3], [device.attributes["example.com"].?numa.orValue(3)])',
            f'["x", "{DRIVERS[0]}"].exists(driver, driver == device.driver)',
        )
        return {"cel": {"expression": expression}}

    def constraint(self, names: list[str]) -> JsonObject:
        attribute = self.pick("example.com/numa", f"{DRIVERS[0]}/index", f"{DRIVERS[0]}/model", f"{DRIVERS[0]}/big")
        constraint: JsonObject = {self.pick("matchAttribute", "matchAttribute", "distinctAttribute"): attribute}
        if self.chance(0.4):
            constraint["requests"] = self.some(names)
        return constraint

    def config(self, names: list[str]) -> JsonObject:
        config: JsonObject = {"opaque": {"driver": DRIVERS[0], "parameters": {"n": self.random.randint(0, 9)}}}
        if self.chance(0.6):
            config["requests"] = self.some(names)
        return config

    def some(self, names: list[str]) -> list[str]:
        return self.random.sample(names, self.random.randint(1, len(names)))
