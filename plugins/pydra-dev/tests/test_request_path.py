"""What a request's path points at."""

from __future__ import annotations

import pytest

from pydra_dev.api.kinds import NAMESPACES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from pydra_dev.api.request_path import Target, parse_path

PATHS = {
    "/apis/resource.k8s.io/v1/resourceslices": Target(kind=RESOURCE_SLICES),
    "/apis/resource.k8s.io/v1/resourceslices/a": Target(kind=RESOURCE_SLICES, name="a"),
    "/apis/resource.k8s.io/v1/resourceclaims": Target(kind=RESOURCE_CLAIMS),
    "/apis/resource.k8s.io/v1/namespaces/n/resourceclaims/c/status": Target(
        kind=RESOURCE_CLAIMS, namespace="n", name="c", subresource="status"
    ),
    "/api/v1/namespaces/n/pods": Target(kind=PODS, namespace="n"),
    "/api/v1/namespaces/n": Target(kind=NAMESPACES, name="n"),
    "/api/v1/namespaces/n/status": Target(kind=NAMESPACES, name="n", subresource="status"),
}
NOWHERE = [
    "/",
    "/api",
    "/api/v1",
    "/apis/resource.k8s.io/v1beta1/resourceslices",
    "/apis/resource.k8s.io/v1/namespaces/n/resourceslices",
    "/apis/resource.k8s.io/v1/resourceclaims/c",
    "/apis/resource.k8s.io/v1/resourceslices/a/status",
    "/apis/resource.k8s.io/v1/resourceslices/a/b/c",
    "/api/v1/namespaces/n/pods/p/exec",
]


@pytest.mark.parametrize(("path", "target"), PATHS.items())
def test_a_path_points_at_its_target(path: str, target: Target) -> None:
    assert parse_path(path) == target


@pytest.mark.parametrize("path", NOWHERE)
def test_what_is_not_served_is_nowhere(path: str) -> None:
    assert parse_path(path) is None
