"""Opaque parameters become the backend's types, or every fault in them is reported at once."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from pydra.backends.claim_config import (
    MOST_PROBLEMS,
    decode_claim,
    decode_config,
    decode_what_fits,
    find_config_problems,
)
from pydra.claim import AllocatedDevice, Claim, OpaqueConfig
from pydra.errors import InvalidConfig

API = "gpu.example.com/v1"


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    replicas: Annotated[int, Meta(ge=1, le=8)] = 1


class GpuConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    sharing: Sharing | None = None
    memory_limit: str = ""

    def __post_init__(self) -> None:
        if self.memory_limit and self.sharing is None:
            raise ValueError("memoryLimit needs sharing")


class Tagged(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="Tagged"):
    apiVersion: str  # noqa: N815 - the API's name
    n: int = 0


TYPES: dict[str, type[Any]] = {f"{API}/GpuConfig": GpuConfig, f"{API}/Tagged": Tagged}


def config(position: str = "spec.config[0]", **parameters: Any) -> OpaqueConfig:
    return OpaqueConfig(source="FromClaim", position=position, parameters=parameters)


def gpu(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": API, "kind": "GpuConfig", **fields}


def device(*configs: OpaqueConfig, name: str = "gpu-0") -> AllocatedDevice:
    return AllocatedDevice(request="gpu", pool="node", device=name, configs=configs)


def claim(*devices: AllocatedDevice) -> Claim:
    return Claim(uid="u", namespace="ns", name="c", devices=devices)


def test_parameters_become_a_value_of_their_kind() -> None:
    decoded = decode_config(config(**gpu(sharing={"replicas": 4}, memoryLimit="1Gi")), TYPES)
    assert decoded == GpuConfig(sharing=Sharing(replicas=4), memory_limit="1Gi")


def test_a_type_may_have_kind_and_api_version_of_its_own() -> None:
    assert decode_config(config(apiVersion=API, kind="Tagged", n=3), TYPES) == Tagged(apiVersion=API, n=3)


@pytest.mark.parametrize(
    ("parameters", "problems"),
    [
        (gpu(), []),
        (gpu(sharing={"replicas": 9}), ["$.sharing.replicas: found 9, allowed: an integer >= 1 and <= 8"]),
        (
            gpu(sharing={"replica": 2}, memorylimit="x"),
            [
                '$.memorylimit: unknown field (did you mean "memoryLimit"?), allowed: memoryLimit, sharing',
                '$.sharing.replica: unknown field (did you mean "replicas"?), allowed: replicas',
            ],
        ),
        (gpu(memoryLimit="1Gi"), ["$: memoryLimit needs sharing"]),
        (
            {"apiVersion": API, "kind": "GpuConfg"},
            [
                f'$.kind: found "GpuConfg" (did you mean "GpuConfig"?), '
                f"allowed (apiVersion/kind): {API}/GpuConfig, {API}/Tagged"
            ],
        ),
        (
            {"apiVersion": "gpu.example.com/v2", "kind": "GpuConfig"},
            [
                f'$.apiVersion: found "gpu.example.com/v2" (did you mean "{API}"?), '
                f"allowed (apiVersion/kind): {API}/GpuConfig, {API}/Tagged"
            ],
        ),
        (
            {},
            [
                f"$.apiVersion: missing, allowed (apiVersion/kind): {API}/GpuConfig, {API}/Tagged",
                f"$.kind: missing, allowed (apiVersion/kind): {API}/GpuConfig, {API}/Tagged",
            ],
        ),
        ([1], ["$: found a list of 1, allowed: an object"]),
    ],
)
def test_every_problem_is_reported_with_its_path(parameters: Any, problems: list[str]) -> None:
    assert list(find_config_problems(parameters, TYPES)) == problems


@pytest.mark.parametrize("kind", [None, [], {"a": 1}, 7], ids=repr)
def test_a_kind_that_is_no_string_is_reported_as_found(kind: Any) -> None:
    (problem,) = find_config_problems({"apiVersion": API, "kind": kind}, TYPES)
    assert problem.startswith("$.kind: found ")


def test_a_backend_without_config_types_says_so() -> None:
    (problem, *_) = find_config_problems(gpu(), {})
    assert "this backend takes no configuration" in problem


def test_a_claim_collects_the_problems_of_all_its_devices_once() -> None:
    shared = config("spec.config[0]", **gpu(sharing={"replicas": 0}))
    other = config("spec.config[1]", **gpu(memoryLimit=5))
    with pytest.raises(InvalidConfig) as caught:
        decode_claim(claim(device(shared), device(shared, other, name="gpu-1")), TYPES)
    assert caught.value.problems == (
        "spec.config[0]: $.sharing.replicas: found 0, allowed: an integer >= 1 and <= 8",
        "spec.config[1]: $.memoryLimit: found 5, allowed: a string",
    )


def test_of_thousands_of_problems_the_first_are_reported_and_no_others_looked_for() -> None:
    wrong = config("spec.config[0]", **gpu(**{f"field{number:04}": 1 for number in range(1000)}))
    looked: list[object] = []

    def check(found: object) -> list[str]:
        looked.append(found)
        return []

    with pytest.raises(InvalidConfig) as caught:
        decode_claim(claim(device(wrong, config("spec.config[1]", **gpu()))), TYPES, check)
    assert len(caught.value.problems) == MOST_PROBLEMS + 1
    assert caught.value.problems[-1] == "these are the first 100, and there are more"
    assert looked == []


def test_a_device_gives_its_config_by_type() -> None:
    decoded = decode_claim(
        claim(device(config(**gpu(sharing={"replicas": 2})), config(apiVersion=API, kind="Tagged"))), TYPES
    )
    assert decoded.devices[0].config(GpuConfig) == GpuConfig(sharing=Sharing(replicas=2))
    assert decoded.devices[0].config(Tagged) == Tagged(apiVersion=API)


def test_undoing_leaves_out_what_does_not_decode_any_more() -> None:
    good, bad = config(**gpu()), config(**gpu(gone=True))
    (found,) = decode_what_fits(claim(device(good, bad)), TYPES).devices
    assert (found.configs, found.explicit) == ((GpuConfig(),), (False,))


def test_a_config_that_names_the_request_of_a_device_it_does_not_fit_is_misplaced() -> None:
    mine, other = config(**gpu()), config(apiVersion=API, kind="Sharing")
    types: dict[str, type[Any]] = {**TYPES, f"{API}/Sharing": Sharing}
    for explicit, misplaced in {(False, True): (Sharing(),), (True, False): (), (): ()}.items():
        wanted = msgspec.structs.replace(device(mine, other), explicit=explicit)
        (found,) = decode_claim(claim(wanted), types).devices
        assert found.misplaced(GpuConfig) == misplaced
        assert found.misplaced(GpuConfig, Sharing) == ()
        assert [found.position(one) for one in found.misplaced(GpuConfig)] == ["spec.config[0]"] * len(misplaced)
