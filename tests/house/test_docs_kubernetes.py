"""Objects of Kubernetes that the pages print are valid in the oldest and the newest version, by its API's schemas."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes_validate.utils import ValidationError, validate

from tests.house.pages import PAGES, find_yaml

VERSIONS = ["1.34", "1.37"]
ELSEWHERE = {"cert-manager.io", "kubevirt.io", "sim.pydra.dev", "resource.nvidia.com"}
"""Groups that are no part of Kubernetes."""


def find_objects(page: str) -> list[dict[str, Any]]:
    found = [one for one in find_yaml(page) if isinstance(one, dict) and {"apiVersion", "kind"} <= one.keys()]
    return [one for one in found if one["apiVersion"].rpartition("/")[0] not in ELSEWHERE]


OBJECTS = [
    pytest.param(one, id=f"{page}: {one['kind']} {one['metadata']['name']}")
    for page in PAGES
    for one in find_objects(page)
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("one", OBJECTS)
def test_objects_in_the_pages_are_valid(one: dict[str, Any], version: str) -> None:
    validate(one, version, strict=True)


def test_there_are_objects_of_many_kinds() -> None:
    assert len({param.values[0]["kind"] for param in OBJECTS}) >= 8  # type: ignore[index]


def test_a_field_that_is_none_would_be_seen() -> None:
    (role,) = [one for one in find_objects("docs/install.md") if one["kind"] == "ClusterRole"]
    with pytest.raises(ValidationError, match="verb"):
        validate({**role, "rules": [{"verb": ["get"]}]}, "1.36", strict=True)


def test_what_a_pod_names_in_a_page_is_there() -> None:
    for page in PAGES:
        objects = find_objects(page)
        made = {(one["kind"], one["metadata"]["name"]) for one in objects}
        for pod in (one["spec"] for one in objects if one["kind"] == "Pod"):
            claims = pod.get("resourceClaims", ())
            for claim in claims:
                kind = "ResourceClaim" if "resourceClaimName" in claim else "ResourceClaimTemplate"
                assert (kind, claim.get("resourceClaimName") or claim["resourceClaimTemplateName"]) in made, page
            for container in pod["containers"]:
                used = {one["name"] for one in container.get("resources", {}).get("claims", ())}
                assert used <= {one["name"] for one in claims}, page
