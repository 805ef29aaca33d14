"""Objects of Kubernetes that the pages print are valid in the oldest and the newest version, by its API's schemas."""

from __future__ import annotations

from typing import Any

import pytest

from tests.house.pages import PAGES, find_yaml
from tests.kubernetes_schemas import find_faults

VERSIONS = ["1.34", "1.37"]
ELSEWHERE = {"cert-manager.io", "kubevirt.io", "sim.pydra.dev", "resource.nvidia.com"}
"""Groups that are no part of Kubernetes."""


def find_objects(page: str) -> list[dict[str, Any]]:
    found = [one for one in find_yaml(page) if isinstance(one, dict) and {"apiVersion", "kind"} <= one.keys()]
    return [one for one in found if one["apiVersion"].rpartition("/")[0] not in ELSEWHERE]


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_in_the_pages_are_valid(version: str) -> None:
    found = [(page, one) for page in PAGES for one in find_objects(page)]
    assert len({one["kind"] for _, one in found}) >= 8
    assert [f"{page}: {fault}" for page, one in found for fault in find_faults(version, one)] == []


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
