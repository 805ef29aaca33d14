"""The page of `pydra dev --web` without a browser: whom it answers, what it says of a node, and what it does there."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from pydra.cli.tool import main
from pydra.errors import SettingsError
from pydra_dev.api.schema import SliceSpec, parse_fields
from pydra_dev.command.dev_command import DevCommand
from pydra_dev.command.options import Options
from pydra_dev.node import free_port
from pydra_dev.page.server import Address, Page, parse_address, serve_page
from pydra_dev.page.view import build_shown_pools
from pydra_dev.scheduler.device_accounting import InUse
from pydra_dev.scheduler.pools import DeviceKey, NamedSlice

NODE = {"metadata": {"name": "n"}}
OWN = {"Origin": "http://127.0.0.1:{port}"}
TOKEN = {"Authorization": "Bearer {token}"}
TWO_OBJECTS = b"""
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: mine}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: sim.pydra.dev}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  resourceClaims: [{name: c, resourceClaimName: mine}]
  containers: [{name: m, image: i, resources: {claims: [{name: c}]}}]
"""


class Browser:
    """What the page's script does, without the script."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str = "") -> None:
        self.session = session
        self.url = url
        self.token = token

    async def wait_view(self, wanted: Callable[[Any], Any]) -> Any:
        """The first view of a new stream in which there is what is wanted; that is returned."""
        return await self._wait("view", lambda view: view and wanted(view))

    async def wait_entry(self, wanted: str) -> None:
        """Wait until a line of what happened has this text."""
        await self._wait("entry", lambda entry: wanted in entry["headline"])

    async def _wait(self, kind: str, wanted: Callable[[Any], Any]) -> Any:
        with anyio.fail_after(60):
            async with self.session.get(f"{self.url}/stream") as response:
                event = ""
                async for line in response.content:
                    name, _, value = line.decode().rstrip("\n").partition(": ")
                    event = value if name == "event" else event
                    if (name, event) == ("data", kind) and (found := wanted(json.loads(value))):
                        return found
        raise AssertionError("the stream ended")

    async def get(self, path: str, **query: str) -> Any:
        async with self.session.get(f"{self.url}/{path}", params=query) as response:
            return await response.json()

    async def operate(self, operation: str, argument: Any = None) -> tuple[int, Any]:
        body = argument if isinstance(argument, bytes) else json.dumps(argument).encode()
        headers = {"Origin": self.url, "Authorization": f"Bearer {self.token}"}
        async with self.session.post(f"{self.url}/operations/{operation}", data=body, headers=headers) as response:
            return response.status, await response.json()


@asynccontextmanager
async def open_browser(url: str) -> AsyncIterator[Browser]:
    """A browser with the address that the terminal shows."""
    place, _, token = url.partition("/?token=")
    async with aiohttp.ClientSession(read_bufsize=1 << 20) as session:
        yield Browser(session, place, token)


@asynccontextmanager
async def run_dev(**options: Any) -> AsyncIterator[Browser]:
    """A `pydra dev` and its page, at the address that its first line has."""
    served = anyio.Event()
    lines: list[str] = []

    def write(text: str) -> None:
        lines.append(text)
        served.set()

    command = DevCommand(Options(web=str(free_port()), **options), write=write)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(command.run)
        await served.wait()
        async with open_browser(lines[0].partition("ready: page ")[2].strip()) as browser:
            yield browser
        command.stop()


def find_devices(view: Any) -> dict[str, Any]:
    groups = [group for pool in view["pools"] for group in pool["groups"]]
    return {device["key"][2]: device for group in groups for device in group["devices"]}


def find_running(view: Any) -> list[Any]:
    return [claim for claim in view["claims"] if claim["call"] and claim["pods"][0]["status"] == "Running"]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8080", Address("127.0.0.1", 8080)),
        ("localhost:8080", Address("127.0.0.1", 8080)),
        ("127.0.0.2:80", Address("127.0.0.2", 80)),
        ("[::1]:8080", Address("::1", 8080)),
    ],
)
def test_an_address_is_a_port_or_a_loopback_address_with_one(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0.0.0.0:8080", "0.0.0.0 is not a loopback address"),
        ("192.0.2.1:8080", "ssh -L 8080:127.0.0.1:8080"),
        ("[::]:8080", ":: is not a loopback address"),
        ("example.com:8080", "'example.com:8080' is not an address: give PORT or ADDRESS:PORT"),
        ("web", "'web' is not an address"),
        ("127.0.0.1:", "'127.0.0.1:' is not an address"),
        ("0", "'0' is not an address"),
        ("65536", "'65536' is not an address"),
    ],
)
def test_another_address_is_refused_with_what_to_give(text: str, problem: str) -> None:
    with pytest.raises(SettingsError) as refused:
        DevCommand(Options(web=text), write=lambda _: None)
    assert problem in str(refused.value)


async def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"cannot listen on 127.0.0.1:{port}: .* give another port"):
            await DevCommand(Options(web=str(port)), write=lambda _: None).run()


def test_a_page_needs_a_node_that_stays_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", "--web", "--once"]) == 2
    assert "leave out --once and --in-process" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "said"),
    [
        ("GET", "/", {"Host": "evil.example.com"}, 403, "not at evil.example.com"),
        ("GET", "/stream", {"Host": "evil.example.com:{port}"}, 403, "not at evil.example.com"),
        ("GET", "/", {"Host": "localhost:{port}"}, 200, "<h1>pydra dev</h1>"),
        ("POST", "/operations/crash-backend", {}, 403, "Origin must be its own"),
        ("POST", "/operations/crash-backend", {"Origin": "http://evil.example.com"}, 403, "Origin must be its own"),
        ("POST", "/operations/crash-backend", {"Origin": "null"}, 403, "Origin must be its own"),
        ("POST", "/operations/crash-backend", {"Origin": "null", **TOKEN}, 403, "Origin must be its own"),
        ("POST", "/operations/apply", OWN, 403, "the address that `pydra dev` has printed: it has the token"),
        ("POST", "/operations/apply", {**OWN, "Authorization": "Bearer guess"}, 403, "it has the token"),
        ("POST", "/operations/apply", {**OWN, **TOKEN}, 409, "the node is being started"),
        ("POST", "/operations/crash-backend", {**OWN, **TOKEN}, 409, "the node is being started"),
        ("GET", "/operations/crash-backend", {}, 405, ""),
        ("GET", "/page.py", {}, 404, ""),
        ("GET", "/../../pyproject.toml", {}, 404, ""),
    ],
)
async def test_only_the_page_itself_is_answered(
    method: str, path: str, headers: dict[str, str], status: int, said: str
) -> None:
    address, page = parse_address(""), Page()
    given = {
        name: value.replace("{port}", str(address.port)).replace("{token}", page.token)
        for name, value in headers.items()
    }
    async with (
        serve_page(page, address, "t"),
        open_browser(address.url) as browser,
        browser.session.request(method, address.url + path, headers=given) as response,
    ):
        assert response.status == status
        assert said in await response.text()
        if status == 200:
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'; script-src 'self'" in policy
            assert "unsafe" not in policy


def test_the_script_makes_no_markup_of_texts() -> None:
    """In a browser its policy and its tests show the same; this also holds for what they do not reach."""
    script = files("pydra_dev.page").joinpath("page.js").read_text()
    for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"):
        assert unsafe not in script


async def test_a_stream_says_what_it_shows_and_ends_with_the_page() -> None:
    address = parse_address("")
    async with open_browser(address.url) as browser:
        async with serve_page(Page(), address, "--backend mine"):
            response = await browser.session.get(f"{address.url}/stream")
            hello = await response.content.readuntil(b"}\n\n")
            assert json.loads(hello.partition(b"event: hello\ndata: ")[2])["title"] == "--backend mine"
        with anyio.fail_after(30):
            assert b"event: view\ndata: null\n" in await response.content.read()


def build_slice(name: str, **spec: Any) -> NamedSlice:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 2}
    body = {"driver": "d", "nodeName": "n", "pool": pool, **spec}
    return NamedSlice(name, parse_fields("ResourceSlice", SliceSpec, body))


def takes(slots: int, memory: str) -> Any:
    return [{"counterSet": "card", "counters": {"slots": {"value": str(slots)}, "memory": {"value": memory}}}]


@pytest.mark.parametrize(
    ("held", "uses", "counters"),
    [
        ((), {"whole": "free", "half-0": "free", "half-1": "free"}, {"slots": ("0", 0), "memory": ("0", 0)}),
        (
            ("half-0",),
            {"whole": "blocked", "half-0": "held", "half-1": "free"},
            {"slots": ("1", 0.5), "memory": ("8Gi", 0.5)},
        ),
        (
            ("whole",),
            {"whole": "held", "half-0": "blocked", "half-1": "blocked"},
            {"slots": ("2", 1), "memory": ("16Gi", 1)},
        ),
    ],
)
def test_partitions_are_shown_with_what_is_left_of_their_counters(
    held: tuple[str, ...], uses: dict[str, str], counters: dict[str, tuple[str, float]]
) -> None:
    slices = [
        build_slice(
            "a",
            sharedCounters=[{"name": "card", "counters": {"slots": {"value": "2"}, "memory": {"value": "16Gi"}}}],
        ),
        build_slice(
            "b",
            devices=[
                {"name": "whole", "consumesCounters": takes(2, "16Gi")},
                {"name": "half-0", "consumesCounters": takes(1, "8Gi")},
                {"name": "half-1", "consumesCounters": takes(1, "8Gi")},
            ],
        ),
    ]
    keys: list[DeviceKey] = [("d", "p", one) for one in held]
    in_use = InUse(whole=frozenset(keys), shared={})
    health = dict.fromkeys(keys, "Healthy")
    (pool,) = build_shown_pools(slices, node=NODE, in_use=in_use, claims=(), health=health)
    (group,) = pool.groups
    assert group.name == "card"
    assert {device.key[2]: device.use for device in group.devices} == uses
    assert {counter.name: (counter.used, counter.part) for counter in group.counters} == counters
    assert {counter.total for counter in group.counters} == {"2", "16Gi"}
    assert [device.key[2] for device in group.devices if device.health] == list(held)


async def test_a_node_is_shown_explained_broken_and_repaired() -> None:
    """All on one node, since each takes a second to start."""
    async with run_dev(scenario="partitions") as page:
        (claim,) = await page.wait_view(find_running)
        assert claim["state"] == "allocated,reserved"
        assert claim["devices"] == [["sim.pydra.dev", "embedded-node", "accel-1"]]
        assert claim["call"].startswith(f"prepared: claim default/{claim['name']}")

        why = await page.get("claim", namespace="default", name=claim["name"])
        assert why["results"] == [["accelerator", claim["devices"][0]]]
        reasons = {device[2]: one["reason"] for one in why["refusals"] for device in one["devices"]}
        assert reasons["accel-0"].startswith("not selected by the request: device.attributes")
        assert reasons["accel-0"].endswith(" == 1 (numaNode is 0)")
        assert reasons["accel-1-1of4-0"].startswith("not selected by the class sim.pydra.dev: ")
        assert "accel-1" not in reasons
        assert "SIM_ACCEL_1_UUID" in why["specs"][0][1]
        gone = await page.get("claim", namespace="default", name="none")
        assert gone == {"error": "there is no claim default/none any more"}

        assert await page.operate("start-pod") == (200, {})
        (waiting,) = await page.wait_view(
            lambda view: [one for one in view["claims"] if one["pods"] and one["pods"][0]["message"]]
        )
        assert waiting["pods"][0]["name"] == "sample-2"
        assert "0/1 nodes are available" in waiting["pods"][0]["message"]
        why = await page.get("claim", namespace="default", name=waiting["name"])
        assert [one["devices"] for one in why["refusals"] if one["reason"] == "in use"] == [claim["devices"]]

        key = ["sim.pydra.dev", "embedded-node", "accel-0"]
        assert await page.operate("break-device", key) == (200, {})
        broken = await page.wait_view(lambda view: (one := find_devices(view)["accel-0"])["broken"] and one)
        assert broken["taints"] == ["sim.pydra.dev/unhealthy:NoSchedule"]  # its backend has seen it
        assert (await page.get("device", driver=key[0], pool=key[1], name=key[2]))["values"]["memory"] == "64Gi"
        assert await page.operate("repair-device", key) == (200, {})
        await page.wait_view(lambda view: not find_devices(view)["accel-0"]["broken"])
        never = {"error": "device accel-0 was not broken on this page"}
        assert await page.operate("repair-device", key) == (409, never)
        unknown = {"error": "device ../x is not published any more"}
        assert await page.operate("break-device", [*key[:2], "../x"]) == (409, unknown)
        assert (await page.operate("break-device", "accel-0"))[0] == 400
        assert (await page.operate("reboot"))[0] == 404

        before = await page.wait_view(lambda view: view["backends"])
        assert await page.operate("crash-backend") == (200, {})
        after = await page.wait_view(lambda view: view["backends"] != before and view["backends"])
        assert len(after) == 1
        await page.wait_entry("ready again in process")

        assert await page.operate("delete-pod", ["default", "sample"]) == (200, {})
        await page.wait_view(lambda view: [one["pods"][0]["name"] for one in find_running(view)] == ["sample-2"])


async def test_a_claim_that_nothing_fits_says_why_and_yaml_of_ones_own_is_created_or_refused(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("groups: [{name: accel, count: 1}]")  # the sample wants one of NUMA node 1
    async with run_dev(scenario=str(scenario)) as page:
        view = await page.wait_view(lambda view: view["claims"] and view)
        why = await page.get("claim", namespace="default", name=view["claims"][0]["name"])
        assert [one["reason"].endswith(" == 1 (numaNode is 0)") for one in why["refusals"]] == [True]
        assert "wants 1 device of class sim.pydra.dev, of 0 that match 0 are available" in why["problem"]
        assert await page.operate("apply", TWO_OBJECTS) == (200, ["ResourceClaim mine", "Pod user"])
        await page.wait_view(lambda view: any(one["name"] == "mine" for one in find_running(view)))
        for text, said in [
            (TWO_OBJECTS, 'resourceclaims.resource.k8s.io "mine" already exists'),
            (TWO_OBJECTS.replace(b"mine", b"other"), 'pods "user" already exists; created before: ResourceClaim other'),
            (b"kind: Pod\nmetadata: {name: x}", "the YAML: apiVersion must be set"),
            (b"kind: [", "the YAML: is not valid YAML"),
            (b"", "the YAML: no manifest is there"),
            (TWO_OBJECTS.partition(b"---")[2].replace(b"image:", b"x:"), "spec.containers[0].image: Required value"),
        ]:
            status, answer = await page.operate("apply", text)
            assert status == 409
            assert said in answer["error"]
        assert (await page.operate("apply", b"\xff"))[0] == 400


async def test_a_node_whose_run_has_failed_is_still_shown(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("faults: [{call: prepare, do: refuse, message: not today}]")
    async with run_dev(scenario=str(scenario)) as page:
        view = await page.wait_view(lambda view: view["failure"] and view)
        assert view["failure"] == "pod default/sample has failed 3 times"
        assert view["claims"]
