"""Who else reaches the embedded API server, such as a page in a browser on this machine, can do nothing with it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import aiohttp
import anyio
import pytest
import yaml

from pydra.kube import api_resources
from pydra.kube.client import KubeClient
from pydra.kube.credentials import load_credentials
from pydra_dev.api.kinds import PODS
from pydra_dev.apiserver.server import ApiServer
from pydra_dev.control_plane import serve_control_plane

PODS_PATH = "/api/v1/namespaces/default/pods"
POD = '{"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}'
JSON = {"Content-Type": "application/json"}


async def post(server: ApiServer, headers: dict[str, str]) -> tuple[int, str]:
    async with aiohttp.ClientSession(skip_auto_headers={"Content-Type"}) as session:
        given = {"Authorization": f"Bearer {server.token}", **headers}
        async with session.post(server.url + PODS_PATH, data=POD.encode(), headers=given) as answer:
            return answer.status, (await answer.json())["message"] if answer.status >= 400 else ""


@pytest.mark.parametrize(
    ("headers", "code", "told"),
    [
        pytest.param({**JSON, "Authorization": ""}, 401, "Unauthorized", id="without the token"),
        pytest.param({**JSON, "Authorization": "Bearer guessed"}, 401, "Unauthorized", id="with another token"),
        pytest.param({**JSON, "Origin": "http://evil.example"}, 403, "web pages", id="from a page"),
        pytest.param({**JSON, "Origin": "null"}, 403, "web pages", id="from a sandboxed page"),
        pytest.param({**JSON, "Host": "evil.example:80"}, 403, "the Host", id="under another name"),
        pytest.param({**JSON, "Host": "127.0.0.1.evil.example"}, 403, "the Host", id="under a name like an address"),
        pytest.param({}, 415, "found none", id="without a type"),
        pytest.param({"Content-Type": "text/plain"}, 415, "found text/plain", id="with a type that pages may choose"),
    ],
)
async def test_what_a_web_page_could_send_is_refused(headers: dict[str, str], code: int, told: str) -> None:
    async with serve_control_plane() as server:
        status, message = await post(server, headers)
        assert (status, told in message) == (code, True), message
        assert not server.api.list(PODS).items


async def test_curl_creates_and_applies_yaml_at_the_address_in_the_kubeconfig() -> None:
    manifest = "metadata: {name: p, labels: {a: b}}\nspec:\n  containers: [{name: c, image: i}]\n"
    async with serve_control_plane() as server, aiohttp.ClientSession() as session:
        address = yaml.safe_load(server.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        headers = {"Content-Type": "application/yaml"}
        async with session.post(address + PODS_PATH, data=manifest.encode(), headers=headers) as answer:
            assert answer.status == 201, await answer.text()
        headers = {"Content-Type": "application/apply-patch+yaml"}
        labels = b"apiVersion: v1\nkind: Pod\nmetadata: {labels: {c: d}}\n"
        path = f"{address}{PODS_PATH}/p?fieldManager=me"
        async with session.patch(path, data=labels, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
        assert server.api.get(PODS, "p", namespace="default")["metadata"]["labels"] == {"a": "b", "c": "d"}
        async with session.post(server.url + PODS_PATH, data=manifest.encode(), headers=JSON) as answer:
            assert "the server's address in the kubeconfig has the token" in await answer.text()


@pytest.mark.parametrize(
    ("kind", "body"),
    [("json", b'{"metadata":' * 2000), ("yaml", b"&a {metadata: *a}")],
    ids=["too many levels", "within itself"],
)
async def test_an_object_that_is_nested_without_end_is_refused(kind: str, body: bytes) -> None:
    async with serve_control_plane() as server, aiohttp.ClientSession() as session:
        address = yaml.safe_load(server.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        headers = {"Content-Type": f"application/{kind}"}
        async with session.post(address + PODS_PATH, data=body, headers=headers) as answer:
            assert answer.status == 400
            assert "unrecognized" in (await answer.json())["message"]


@pytest.mark.parametrize("host", ["localhost:80", "127.0.0.1:80", "[::1]:80"])
async def test_a_client_with_the_token_is_answered_under_every_name_of_this_machine(host: str) -> None:
    async with serve_control_plane() as server:
        assert await post(server, {**JSON, "Host": host}) == (201, "")


async def test_the_kubeconfig_has_a_token_that_is_another_one_for_each_server() -> None:
    async with serve_control_plane() as server, serve_control_plane() as other:
        credentials = await load_credentials(environ={}, kubeconfig=str(server.kubeconfig))
        async with KubeClient(credentials, user_agent="test") as client:
            assert not (await client.list(api_resources.PODS)).items
        assert len(server.token) > 30
        assert server.token != other.token


async def test_a_client_that_sends_no_token_over_http_as_kubectl_has_it_in_the_path_of_its_server() -> None:
    async with serve_control_plane() as server, aiohttp.ClientSession() as session:
        address = yaml.safe_load(server.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        async with session.get(f"{address}/openapi/v3") as answer:
            paths = {one["serverRelativeURL"] for one in (await answer.json())["paths"].values()}
        assert answer.status == 200
        for path in paths:  # from the root of the server, since kubectl leaves out the path
            async with session.get(server.url + path) as answer:
                assert answer.status == 200
        async with session.get(f"{server.url}/guessed/api/v1/pods") as answer:
            assert answer.status == 401


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
async def test_kubectl_reaches_the_server_with_its_kubeconfig(tmp_path: Path) -> None:
    async with serve_control_plane() as server:
        command = ["kubectl", "--kubeconfig", str(server.kubeconfig), "get", "namespaces", "-o", "name"]
        done = await anyio.run_process(command, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
        assert b"namespace/default" in done.stdout
