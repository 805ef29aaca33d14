"""An unsuitable cluster is refused with the reason."""

from __future__ import annotations

import pytest

from pydra.errors import NotFound, Unsupported
from pydra.kube.api_resources import RESOURCE_CLAIMS, Resource
from pydra.kube.version import check_server
from pydra_dev.apiserver.faults import Fault
from tests.integration.api_handle import ApiHandle, open_api
from tests.integration.kube.opened import open_client


async def test_a_supported_server_says_its_version(api_server: ApiHandle) -> None:
    async with open_client(api_server) as client:
        version = await check_server(client)
    assert (version.major, version.minor) >= (1, 34)


async def test_an_older_cluster_is_refused_with_what_is_needed() -> None:
    async with open_api(version="1.33.4") as api, open_client(api) as client:
        with pytest.raises(Unsupported, match=r"runs Kubernetes v1\.33\.4\S*; pydra needs 1\.34 or later"):
            await check_server(client)


@pytest.mark.parametrize(("version", "is_warned"), [("1.37.9", False), ("1.38.0", True)])
async def test_a_cluster_newer_than_any_that_was_tried_is_served_with_a_warning(
    version: str, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_api(version=version) as api, open_client(api) as client:
        await check_server(client)
    assert ("is newer than 1.37" in caplog.text) is is_warned


@pytest.mark.parametrize("version", ["1.36.2", "1.37.0", "1.38.0"])
async def test_an_object_that_does_not_exist_is_not_taken_for_an_api_that_is_not_served(version: str) -> None:
    gone = Resource(group="gone.example.com", version="v1", plural="things", kind="Thing", namespaced=True)
    async with open_api(version=version) as api, open_client(api) as client:
        with pytest.raises(NotFound) as object_missing:
            await client.get(RESOURCE_CLAIMS, "none", namespace="default")
        with pytest.raises(NotFound) as api_missing:
            await client.get(gone, "none", namespace="default")
    assert object_missing.value.is_of_object
    assert not api_missing.value.is_of_object


@pytest.mark.parametrize(
    ("group", "words"),
    [
        pytest.param(
            '{"kind": "APIGroup", "versions": [{"version": "v1beta2"}, {"version": "v1beta1"}]}',
            "only v1beta2, v1beta1, which pydra does not speak",
            id="beta versions only",
        ),
        pytest.param('{"versions": 1}', "nor any other version of it", id="versions of another shape"),
        pytest.param('{"versions": [null, 1]}', "nor any other version of it", id="another shape"),
        pytest.param("", "nor any other version of it", id="nothing of it"),
    ],
)
async def test_a_cluster_without_the_api_is_refused_with_where_to_look(
    api_server: ApiHandle, group: str, words: str
) -> None:
    faults = api_server.embedded.faults
    faults.add(Fault(status=0))
    faults.add(Fault(status=404))
    faults.add(Fault(status=200, body=group) if group else Fault(status=404))
    async with open_client(api_server) as client:
        with pytest.raises(Unsupported, match=rf"does not serve resource.k8s.io/v1, {words}: .*--runtime-config"):
            await check_server(client)
