"""ResourceClaims of all kinds, good, odd and hostile, and what one driver reads from them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra.claim import Claim, ClaimRef, PodRef
from pydra.claims.allocation import base_request, parse_allocation
from pydra.claims.decisions import has_same_devices
from pydra.errors import ClaimError, NotAllocated, PydraError, Replaced

DRIVER = "gpu.example.com"
UID = "0b8b8f2e-6f1a-4bd5-9f3c-1a5b7c9d0e2f"
REF = ClaimRef(uid=UID, namespace="ml", name="train-gpu-x7k2p")


def result(request: str = "gpu", device: str = "gpu-0", driver: str = DRIVER, **more: Any) -> dict[str, Any]:
    return {"request": request, "driver": driver, "pool": "node-1", "device": device, **more}


def config(
    value: object, *, source: str = "FromClaim", requests: object = (), kind: str = "A", driver: str = DRIVER
) -> dict[str, Any]:
    parameters = {"apiVersion": "example.com/v1", "kind": kind, "value": value}
    return {"source": source, "requests": list(requests or ()), "opaque": {"driver": driver, "parameters": parameters}}  # type: ignore[call-overload]


def resource_claim(*results: Any, configs: Any = (), reserved: Any = ()) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": REF.name, "namespace": REF.namespace, "uid": UID, "resourceVersion": "12"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}},
        "status": {
            "allocation": {"devices": {"results": list(results), "config": list(configs)}},
            "reservedFor": list(reserved),
        },
    }


def parse(claim: object) -> Claim:
    return parse_allocation(claim, REF, DRIVER).claim


def values(claim: Claim, device: int = 0) -> list[object]:
    return [one.parameters["value"] for one in claim.devices[device].configs]


def test_the_drivers_devices_come_in_the_order_of_the_results_with_all_they_carry() -> None:
    claim = parse(
        resource_claim(
            result("gpu", "gpu-1"),
            result("nic", "nic-0", driver="net.example.com"),
            result("slice/small", "gpu-0", shareID="a-1", consumedCapacity={"memory": "10Gi"}, adminAccess=True),
        )
    )
    assert (claim.uid, claim.namespace, claim.name) == (UID, "ml", "train-gpu-x7k2p")
    first, second = claim.devices
    assert (first.request, first.pool, first.device, first.share_id, first.admin_access) == (
        "gpu",
        "node-1",
        "gpu-1",
        None,
        False,
    )
    assert (second.request, second.share_id, second.consumed_capacity, second.admin_access) == (
        "slice/small",
        "a-1",
        {"memory": "10Gi"},
        True,
    )


def test_the_pods_that_may_use_the_claim_are_reported() -> None:
    reserved = [
        {"resource": "pods", "name": "train-0", "uid": "p-0"},
        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "train", "uid": "g-0"},
    ]
    allocation = parse_allocation(resource_claim(result(), reserved=reserved), REF, DRIVER)
    assert allocation.pods == (PodRef(uid="p-0", namespace="ml", name="train-0"),)


def test_a_claim_of_another_uid_is_refused_before_its_allocation_is_looked_at() -> None:
    other = resource_claim()
    other["metadata"]["uid"] = "other"
    del other["status"]
    with pytest.raises(Replaced, match=f"sent uid {UID}, the API server has 'other'"):
        parse(other)


@pytest.mark.parametrize(
    "status",
    [None, {}, {"allocation": None}, {"allocation": {}}, {"allocation": {"devices": None}}],
    ids=["no-status", "empty-status", "null", "empty", "null-devices"],
)
def test_a_claim_without_allocation_says_what_to_do(status: object) -> None:
    claim = resource_claim()
    claim["status"] = status
    with pytest.raises(NotAllocated, match="is not allocated; the scheduler allocates it"):
        parse(claim)


def test_a_claim_with_devices_of_others_only_names_them() -> None:
    with pytest.raises(NotAllocated, match=r"no device of driver gpu\.example\.com; it has 'net\.example\.com'"):
        parse(resource_claim(result(driver="net.example.com")))


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ([config(1)], [1]),
        ([config(1, driver="net.example.com")], []),
        ([config(1, source="FromClass"), config(2)], [2]),
        ([config(2), config(1, source="FromClass")], [2]),
        ([config(1), config(2)], [2]),
        ([config(1, kind="A"), config(2, kind="B"), config(3, kind="A")], [2, 3]),
        ([config(1, requests=["gpu"])], [1]),
        ([config(1, requests=["gpu/large"])], [1]),
        ([config(1, requests=["gpu/small"])], []),
        ([config(1, requests=["other", "gpu"])], [1]),
        ([config(1, requests=["gp"])], []),
        ([{"source": "FromClass", "requests": [], "opaque": None}, config(2)], [2]),
        ([{"source": "FromClaim"}, config(2)], [2]),
        ([{**config(1), "requests": None}], [1]),
        ([config(1, source="FromClass", kind="B"), config(2, kind="A")], [1, 2]),
    ],
    ids=[
        "one",
        "other-driver",
        "claim-beats-class",
        "class-first-whatever-the-order",
        "later-wins",
        "one-of-each-kind",
        "base-request",
        "full-request",
        "sibling-subrequest",
        "one-of-several-requests",
        "prefix-is-no-match",
        "nil-opaque",
        "absent-opaque",
        "null-requests",
        "kinds-of-both-sources",
    ],
)
def test_the_configs_of_a_device_are_those_that_apply_weakest_first(configs: Any, expected: list[int]) -> None:
    assert values(parse(resource_claim(result("gpu/large"), configs=configs))) == expected


def test_each_device_gets_the_configs_of_its_own_request() -> None:
    claim = parse(
        resource_claim(
            result("a", "gpu-0"),
            result("b", "gpu-1"),
            configs=[config(0), config(1, requests=["a"]), config(2, requests=["b"])],
        )
    )
    assert [values(claim, 0), values(claim, 1)] == [[1], [2]]


def test_what_a_claim_gives_to_a_request_by_name_is_distinguished_from_what_is_for_all_and_from_a_classs() -> None:
    claim = parse(
        resource_claim(
            result("gpu/large"),
            configs=[
                config(1, kind="A", requests=["gpu"], source="FromClass"),
                config(2, kind="B"),
                config(3, kind="C", requests=["gpu"]),
            ],
        )
    )
    assert claim.devices[0].explicit == (False, False, True)


def test_a_config_is_named_by_its_place_among_those_of_its_source() -> None:
    claim = parse(
        resource_claim(
            result("gpu"),
            configs=[
                config(0, source="FromClass", kind="A"),
                config(1, driver="net.example.com"),
                config(2, requests=["gpu"], kind="B"),
            ],
        )
    )
    assert [one.position for one in claim.devices[0].configs] == [
        "FromClass config 1",
        "FromClaim config 2 (request gpu)",
    ]


def test_a_config_of_the_claim_is_named_by_its_place_in_the_spec() -> None:
    # The scheduler copies what names two requests twice, and what is for another alternative not at all.
    requests: tuple[list[str], ...] = (["gpu", "nic"], ["gpu/small"], ["gpu"], ["gpu"], [])
    written = [config(n, requests=of, kind=f"K{n}") for n, of in zip((0, 2, 2, 3, 4), requests, strict=True)]
    claim = resource_claim(result("gpu/large"), configs=[written[0], *(written[n] for n in (0, 2, 3, 4))])
    claim["spec"]["devices"]["config"] = [{key: one[key] for key in ("requests", "opaque")} for one in written]
    assert [one.position for one in parse(claim).devices[0].configs] == [
        "spec.devices.config[0] (request gpu, nic)",
        "spec.devices.config[2] (request gpu)",
        "spec.devices.config[3] (request gpu)",
        "spec.devices.config[4]",
    ]


@pytest.mark.parametrize(
    "parameters",
    [{}, {"kind": 3}, {"apiVersion": ["x"], "kind": "A"}, {"apiVersion": "x", "kind": ["A"]}],
    ids=["none", "number", "list", "list of kinds"],
)
def test_configs_without_a_kind_are_all_kept_for_their_decoder_to_refuse(parameters: dict[str, Any]) -> None:
    entry = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}
    assert len(parse(resource_claim(result(), configs=[entry, entry])).devices[0].configs) == 2


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"pool": "../etc"}, r"results\[0\]\.pool is '\.\./etc'"),
        ({"device": "../../dev/sda"}, r"results\[0\]\.device is '\.\./\.\./dev/sda'"),
        ({"device": "gpu_0"}, r"results\[0\]\.device"),
        ({"device": "g" * 64}, r"results\[0\]\.device is 'ggg"),
        ({"device": "gpu-0\n"}, r"results\[0\]\.device is 'gpu-0\\n'"),
        ({"device": "\N{FULLWIDTH LATIN SMALL LETTER G}pu"}, r"results\[0\]\.device is '\\uff47pu'"),
        ({"device": ""}, r"results\[0\]\.device is ''"),
        ({"pool": "a/" * 200 + "a"}, r"results\[0\]\.pool"),
        ({"request": "a/b/c"}, r"results\[0\]\.request is 'a/b/c'"),
        ({"shareID": "../x"}, r"results\[0\]\.shareID"),
        ({"pool": 7}, r"results\[0\]\.pool"),
        ({"device": None}, r"results\[0\]\.device"),
        ({"adminAccess": "yes"}, r"results\[0\]\.adminAccess"),
        ({"consumedCapacity": {"memory": {"value": "1"}}}, r"results\[0\]\.consumedCapacity"),
        ({"consumedCapacity": {"memory": "\ud800"}}, r"status\.allocation: .*surrogates"),
    ],
)
def test_a_hostile_result_is_refused_with_its_path(change: dict[str, Any], path: str) -> None:
    with pytest.raises(ClaimError, match=path):
        parse(resource_claim({**result(), **change}))


@pytest.mark.parametrize("pool", ["node-1", "rack-1/node-1", "a.b.c/d", "ip-10-0-0-1.ec2.internal"])
def test_pools_may_have_slashes(pool: str) -> None:
    assert parse(resource_claim({**result(), "pool": pool})).devices[0].pool == pool


@pytest.mark.parametrize(
    ("value", "why"),
    [(2**70, "is an integer of more than 64 bits"), ("\ud800", "has an unpaired surrogate")],
    ids=["huge-integer", "half-a-character"],
)
def test_parameters_that_cannot_be_kept_are_refused_where_they_stand(value: object, why: str) -> None:
    with pytest.raises(ClaimError, match=rf"FromClaim config 2: \$\.\w+ {why}"):
        parse(resource_claim(result(), configs=[config(1), config(value, kind="B")]))


def test_parameters_may_have_whatever_json_can_hold() -> None:
    value = ["Zürich", {"größe": "\U0001f600"}, 2**64 - 1, -(2**63), 0.5, True, None, nest(61)]
    assert values(parse(resource_claim(result(), configs=[config(value)]))) == [value]


@pytest.mark.parametrize("depth", [100, 5_000, 500_000])
def test_parameters_nested_too_deep_are_refused(depth: int) -> None:
    copied, written = (config(nest(depth)) for _ in range(2))
    claim = resource_claim(result(), configs=[copied])
    claim["spec"]["devices"]["config"] = [{"opaque": written["opaque"]}]
    with pytest.raises(ClaimError, match=r"config.*: \$.* is nested more than 64 deep"):
        parse(claim)


def nest(depth: int) -> list[Any]:
    deep: list[Any] = []
    for _ in range(depth):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        "claim",
        3,
        {},
        {"metadata": None},
        {"metadata": {}},
        {"metadata": {"uid": 5}},
        {"metadata": {"uid": UID}, "status": []},
    ],
    ids=str,
)
def test_an_object_that_is_no_claim_is_refused(broken: object) -> None:
    with pytest.raises(ClaimError, match="the API server's object cannot be read"):
        parse(broken)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.fuzz
@given(data=st.data())
def test_whatever_stands_anywhere_in_the_object_gives_a_claim_or_an_error_of_ours(data: st.DataObject) -> None:
    broken = copy.deepcopy(resource_claim(result(), configs=[config(1)], reserved=[{"resource": "pods"}]))
    node: Any = broken
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(node[key], dict | list) and node[key] and data.draw(st.booleans()):
            node = node[key]
            continue
        node[key] = data.draw(json_values)
        break
    said = ""
    try:
        said = str(parse(broken))
    except PydraError as error:
        said = str(error)
    assert 0 < len(said) < 2000


@pytest.mark.parametrize(("request_name", "base"), [("gpu", "gpu"), ("gpu/large", "gpu")])
def test_the_base_of_a_request(request_name: str, base: str) -> None:
    assert base_request(request_name) == base


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (resource_claim(result(), configs=[config(1)]), True),
        (resource_claim(result(), configs=[config(0, driver="net.example.com"), config(1)]), True),
        (resource_claim(result(), configs=[config(2)]), False),
        (resource_claim(result(device="gpu-1"), configs=[config(1)]), False),
        (resource_claim(result(shareID="s"), configs=[config(1)]), False),
        (resource_claim(result(consumedCapacity={"memory": "1"}), configs=[config(1)]), False),
        (resource_claim(result(), result("b", "gpu-1"), configs=[config(1)]), False),
    ],
    ids=["same", "config-stands-elsewhere", "other-parameters", "other-device", "share", "capacity", "one-more"],
)
def test_a_changed_allocation_is_distinguished_from_a_repeated_one(other: object, same: bool) -> None:
    assert has_same_devices(parse(resource_claim(result(), configs=[config(1)])), parse(other)) is same
