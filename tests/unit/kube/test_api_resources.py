"""Paths and versions of the API."""

from __future__ import annotations

import pytest

from pydra.kube.api_resources import (
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    build_path,
    object_key,
    parse_resource_version,
)

PATHS = {
    "a core collection": (build_path(NODES), "/api/v1/nodes"),
    "a core object": (build_path(NODES, name="n1"), "/api/v1/nodes/n1"),
    "a namespaced object": (build_path(PODS, namespace="ns", name="p"), "/api/v1/namespaces/ns/pods/p"),
    "all namespaces": (build_path(PODS), "/api/v1/pods"),
    "a group": (build_path(RESOURCE_SLICES, name="s"), "/apis/resource.k8s.io/v1/resourceslices/s"),
    "a subresource": (
        build_path(RESOURCE_CLAIMS, namespace="ns", name="c", subresource="status"),
        "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/c/status",
    ),
    "a namespace that does not apply": (build_path(NODES, namespace="ns", name="n"), "/api/v1/nodes/n"),
    "a name to be encoded": (build_path(NODES, name="a?b#c%d é"), "/api/v1/nodes/a%3Fb%23c%25d%20%C3%A9"),
}


@pytest.mark.parametrize(("path", "expected"), PATHS.values(), ids=PATHS)
def test_a_resource_has_its_path(path: str, expected: str) -> None:
    assert path == expected


@pytest.mark.parametrize("name", ["..", ".", "a/b", "../../api/v1/secrets/x"])
def test_a_name_that_would_lead_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name or namespace of one of the pods"):
        build_path(PODS, namespace="ns", name=name)
    with pytest.raises(ValueError, match="cannot be the name or namespace"):
        build_path(PODS, namespace=name, name="p")


def test_a_resource_says_its_version_and_itself() -> None:
    assert (NODES.api_version, str(NODES)) == ("v1", "nodes")
    assert (EVENTS.api_version, str(EVENTS)) == ("events.k8s.io/v1", "events.events.k8s.io")


def test_versions_are_numbers_where_they_are_any() -> None:
    versions = ("12", "", "abc", "-1", "１２", "1.5", 12, None, "9" * 5000)
    assert [parse_resource_version(text) for text in versions] == [12, 0, 0, 0, 0, 0, 0, 0, 0]


def test_an_object_is_known_by_namespace_and_name() -> None:
    assert object_key({"metadata": {"namespace": "ns", "name": "n"}}) == ("ns", "n")
    assert object_key({"metadata": {"name": "n"}}) == ("", "n")
    assert object_key({}) == ("", "")
