"""The page of `pydra dev --web` in Chromium, with a backend whose texts are hostile."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from anyio.from_thread import start_blocking_portal
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect, sync_playwright

from pydra_dev.node import free_port
from pydra_dev.page.server import Page as Shown
from pydra_dev.page.server import parse_address, serve_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
expect.set_options(timeout=30_000)
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
BACKEND = f"""
from pydra import *
DRIVER = "mine.example.com"
HOSTILE = {HOSTILE!r}
CARD = CounterSet(name="card", counters={{"slots": 2, "memory": "16Gi"}})
def part(name, slots):
    takes = CounterConsumption(counter_set="card", counters={{"slots": slots, "memory": slots * 2**33}})
    return Device(name=name, attributes={{"slots": slots, "text": HOSTILE[:64]}}, consumes_counters=(takes,))
def small(number):
    takes = CounterConsumption(counter_set="full", counters={{"slots": 1}})
    return Device(name=f"small-{{number}}", attributes={{"slots": 3}}, consumes_counters=(takes,))
async def discover():
    full = CounterSet(name="full", counters={{"slots": 0}})
    devices = (part("whole", 2), part("half-0", 1), part("half-1", 1), *map(small, range(13)))
    return Inventory(devices=devices, counter_sets=(CARD, full))
async def prepare(claim):
    if "sample-2" in claim.name: raise ClaimError(HOSTILE)
    return [device.prepared(ContainerEdits().with_env("HOSTILE", HOSTILE)) for device in claim.devices]
async def unprepare(claim, prepared): pass
"""
PODS = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: half}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: mine.example.com, selectors: [
  {cel: {expression: "device.attributes['mine.example.com'].slots == 1"}}]}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: sample}
spec:
  resourceClaims: [{name: c, resourceClaimTemplateName: half}]
  containers: [{name: m, image: i, resources: {claims: [{name: c}]}}]
"""


START_POD = """() => {
  const headers = { Authorization: `Bearer ${new URLSearchParams(location.search).get("token")}` };
  return fetch("operations/start-pod", { method: "POST", headers }).then((answer) => answer.status);
}"""


class Dev:
    """`pydra dev --web --watch`, shared by the tests of this module, and the file of its backend."""

    def __init__(self, directory: Path) -> None:
        self.backend = directory / "mine.py"
        self.backend.write_text(BACKEND)
        (directory / "pods.yaml").write_text(PODS)
        self.url = f"http://127.0.0.1:{(port := free_port())}/"
        command = [sys.executable, "-m", "pydra", "dev", "--backend", "./mine.py", "-f", "pods.yaml", "--watch"]
        self._process = subprocess.Popen([*command, "--web", str(port)], cwd=directory, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        said = self._process.stdout.readline().decode()
        assert f"ready: page {self.url}?token=" in said
        self.address = said.partition("ready: page ")[2].strip()
        self._reader = threading.Thread(target=self._process.stdout.read)
        self._reader.start()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        assert self._process.wait(30) == 0
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    found = Dev(tmp_path_factory.mktemp("dev"))
    yield found
    found.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(dev: Dev, browser: Browser) -> Iterator[Page]:
    """The page once the sample pod runs; at the end, nothing failed but operations, or was loaded from elsewhere."""
    problems: list[str] = []
    with browser.new_context() as context:
        found = context.new_page()
        found.on("console", lambda message: problems.append(message.text) if is_problem(message) else None)
        found.on("pageerror", lambda error: problems.append(str(error)))
        found.on("request", lambda request: None if request.url.startswith(dev.url) else problems.append(request.url))
        found.goto(dev.address)
        expect(found.get_by_role("row", name=re.compile("^sample-c-"))).to_contain_text("Running")
        yield found
    assert problems == []


def is_problem(message: ConsoleMessage) -> bool:
    """Whether it is an error, other than the browser's line about an operation that was refused."""
    return message.type == "error" and not re.search("/operations/", message.location["url"])


def tile(page: Page, device: str) -> Locator:
    return page.get_by_role("region", name="Devices").get_by_role("link", name=device)


def claim(page: Page, pod: str) -> Locator:
    return page.get_by_role("table").get_by_role("link", name=re.compile(f"^{pod}-c-"))


def inspector(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=re.compile(f"^{name}"))


def log(page: Page) -> Locator:
    return page.get_by_role("region", name="What happened")


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def test_devices_partitions_and_counters_are_shown(page: Page) -> None:
    expect(tile(page, "half-0")).to_contain_text("held")
    expect(tile(page, "half-1")).to_contain_text("free")
    expect(tile(page, "whole")).to_contain_text("short of counter card/")
    counters = page.get_by_role("list", name="counters of card")
    expect(counters.get_by_role("meter", name="slots in use")).to_have_attribute("value", "0.5")
    expect(counters).to_contain_text("8Gi of 16Gi")
    expect(page.get_by_role("status")).to_have_text("live")


def test_many_blocked_devices_are_folded(page: Page) -> None:
    expect(tile(page, "small-12")).to_be_hidden()
    page.get_by_text("13 blocked", exact=True).click()
    expect(tile(page, "small-12")).to_contain_text("short of counter full/slots")


def test_a_claim_is_explained_and_the_keyboard_keeps_its_place(page: Page) -> None:
    link = claim(page, "sample")
    link.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=re.compile("^Claim sample-c-"))).to_be_visible()
    expect(tile(page, "half-0")).to_contain_text("this claim has it, for r")
    expect(tile(page, "half-1")).to_contain_text("free too, but the first that fits is taken")
    expect(tile(page, "whole")).to_contain_text("not selected by the request: ")
    page.get_by_text("CDI spec that containers get").click()
    link.focus()
    assert page.evaluate(START_POD) == 200
    expect(tile(page, "half-1")).to_contain_text("in use: sample-2-c-")
    expect(link).to_be_focused()
    expect(inspector(page, "Claim sample-c-").get_by_text("cdiVersion")).to_be_visible()
    press(page, "Delete pod sample-2")
    expect(tile(page, "half-1")).to_contain_text("free")


def test_hostile_texts_are_texts(page: Page) -> None:
    press(page, "Start another pod")
    claim(page, "sample-2").click()
    expect(inspector(page, "Claim sample-2")).to_contain_text(HOSTILE)
    expect(log(page)).to_contain_text(HOSTILE)
    tile(page, "whole").click()
    expect(inspector(page, "Device whole")).to_contain_text(HOSTILE[:64])
    assert page.title() == "pydra dev"
    assert page.locator("img, body script").count() == 0
    press(page, "Delete pod sample-2")
    expect(claim(page, "sample-2")).to_have_count(0)


def test_yaml_of_ones_own_is_created_or_refused_beside_its_box(page: Page) -> None:
    box, answer = page.get_by_role("textbox", name="YAML of your own"), page.locator("#applied")
    box.fill("kind: Pod")
    press(page, "Create")
    expect(answer).to_contain_text("apiVersion, metadata must be set")
    box.fill("{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: own}, spec: {}}")
    press(page, "Create")
    expect(answer).to_have_text("Created: DeviceClass own")
    expect(box).to_have_value(re.compile("DeviceClass"))


def test_without_the_token_the_page_shows_and_does_nothing(page: Page, dev: Dev) -> None:
    page.goto(dev.url)
    expect(tile(page, "half-0")).to_contain_text("held")
    answer = page.evaluate("fetch('operations/start-pod', {method: 'POST'}).then((answer) => answer.text())")
    assert "it has the token" in answer


WIDE = """() => [...document.querySelectorAll("header *, section *")]
  .filter((one) => !one.closest("pre, .hidden"))
  .filter((one) => one.getBoundingClientRect().right > one.closest("header, section").getBoundingClientRect().right)
  .map((one) => one.outerHTML.slice(0, 80))"""


def test_on_a_phone_nothing_sticks_out_of_its_part_of_the_page(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    claim(page, "sample").click()
    expect(tile(page, "half-0")).to_contain_text("this claim has it")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate(WIDE) == []
    tile(page, "whole").click()
    expect(inspector(page, "Device whole")).to_contain_text(HOSTILE[:64])
    assert page.evaluate(WIDE) == []


def test_a_device_is_broken_and_repaired(page: Page) -> None:
    tile(page, "half-1").click()
    press(page, "Break")
    expect(tile(page, "half-1")).to_contain_text("pydra.dev/broken=on-the-page")
    expect(inspector(page, "Device half-1")).to_contain_text("pydra.dev/broken=on-the-page:NoSchedule")
    claim(page, "sample").click()
    expect(tile(page, "half-1")).to_contain_text("tainted pydra.dev/broken")
    page.go_back()
    press(page, "Repair")
    expect(tile(page, "half-1")).not_to_contain_text("broken")


def test_a_backend_that_crashes_gets_another_process(page: Page) -> None:
    processes = page.locator("#processes")
    before = processes.inner_text()
    press(page, "Crash the backend")
    expect(log(page)).to_contain_text("its process died of SIGSEGV")
    expect(log(page)).to_contain_text("ready again in process")
    expect(processes).not_to_have_text(before)
    expect(processes).to_have_text(re.compile(r"backend process \d+"))
    expect(page.get_by_role("status")).to_have_text("live")


FIND_FAINT = r"""() => {
  const read = (color) => color.match(/[\d.]+/g).map(Number);
  const linear = (one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
  const light = (color) => {
    const [r, g, b] = read(color).map((one) => linear(one / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (one) => {
    const color = getComputedStyle(one).backgroundColor;
    return read(color)[3] === 0 ? ground(one.parentElement) : color;
  };
  const found = [];
  for (const one of document.querySelectorAll("body *")) {
    const own = [...one.childNodes].filter((child) => child.nodeType === Node.TEXT_NODE);
    const text = own.map((child) => child.data.trim()).join("");
    if (!text || one.disabled || !one.checkVisibility()) continue;
    const [dark, bright] = [light(getComputedStyle(one).color), light(ground(one))].sort((a, b) => a - b);
    const contrast = (bright + 0.05) / (dark + 0.05);
    if (contrast < 4.5) found.push(`${text}: ${contrast.toFixed(1)}`);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_contrast(page: Page, scheme: Literal["light", "dark"]) -> None:
    """At least 4.5 to 1: WCAG 2.2, criterion 1.4.3."""
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    claim(page, "sample").click()
    expect(tile(page, "half-0")).to_contain_text("this claim has it")
    assert page.evaluate(FIND_FAINT) == []


def test_a_change_of_the_backend_is_shown_on_the_same_page(page: Page, dev: Dev) -> None:
    dev.backend.write_text(BACKEND.replace("half-1", "half-9"))
    expect(log(page)).to_contain_text("everything starts again")
    expect(tile(page, "half-9")).to_contain_text("free")
    expect(claim(page, "sample")).to_have_count(1)
    expect(page.get_by_role("status")).to_have_text("live")


def test_a_lost_connection_is_said_and_found_again(browser: Browser) -> None:
    address = parse_address("")
    with start_blocking_portal() as portal, browser.new_context() as context:
        page = context.new_page()
        status = page.get_by_role("status")
        with portal.wrap_async_context_manager(serve_page(Shown(), address, "t")):
            page.goto(address.url)
            expect(status).to_have_text("the node is being started")
        expect(status).to_have_text("connection lost, trying again")
        with portal.wrap_async_context_manager(serve_page(Shown(), address, "t")):
            expect(status).to_have_text("the node is being started")
