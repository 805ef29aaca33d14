"""`pydra dev --in-process`: the backend's coroutines where a debugger can stop them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pydra.cli.tool import main
from tests.forked import run_forked

BACKEND = """
from contextlib import asynccontextmanager
from typing import Annotated
import msgspec
from pydra import ContainerEdits, Device, Inventory
DRIVER = "mine.example.com"
class Settings(msgspec.Struct, frozen=True):
    word: str = "default"
SETTINGS_TYPE = Settings
class Machine:
    def __init__(self, settings): self.settings = settings
    async def discover(self): return Inventory(devices=(Device(name="one"), Device(name="TWO")))
    async def plan(self, claim, held): return {"slot": len(held)}
    async def prepare(self, claim):
        edits = ContainerEdits().with_env("SLOT", str(claim.plan["slot"])).with_env("WORD", self.settings.word)
        return [device.prepared(edits) for device in claim.devices]
    async def unprepare(self, claim, prepared): print("undone", claim.plan)
@asynccontextmanager
async def connect(settings): yield Machine(settings)
"""


def run(backend: Path, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = ("dev", "--in-process", "--backend", str(backend), *arguments)
    if not typed:
        return run_forked("pydra.cli.tool", command, os.environ)
    program = [sys.executable, "-m", "pydra", *command]
    return subprocess.run(program, input=typed, capture_output=True, text=True, timeout=60, check=False)


def test_a_claim_is_prepared_and_unprepared_as_on_a_node(tmp_path: Path) -> None:
    backend, config = tmp_path / "mine.py", tmp_path / "config.yaml"
    backend.write_text(BACKEND)
    config.write_text('backendSettings: {"mine:": {word: given}}')
    done = run(backend, "--config", str(config))
    assert done.returncode == 0, done.stdout + done.stderr
    for told in (
        "left out: device 'TWO' is not published",
        "request device gets device one",
        "+ env      SLOT=0",
        "+ env      WORD=given",
        "undone {'slot': 0}",
    ):
        assert told in done.stdout


STEPS = """
import msgspec
from pydra import Device, Inventory, Plan
DRIVER = "board.example.com"
class SetMode(msgspec.Struct, frozen=True, tag="set-mode"):
    board: int
    before: str
    @property
    def key(self): return "mode"
STEP_TYPES = (SetMode,)
mode = "old"
async def discover(): return Inventory(devices=(Device(name="one"), Device(name="two")))
async def plan(claim, held): return Plan(steps=[SetMode(board=0, before=mode)])
async def apply(step, result, claim):
    global mode
    mode = "new"
    print("applied with", result)
    return "told"
async def undo(step, result, claim): print("undone to", step.before, "with", result)
async def prepare(claim): return [device.prepared() for device in claim.devices]
async def unprepare(claim, prepared): print("unprepared", claim.devices[0].device)
"""
PODS = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: t}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: board.example.com}}]}}}
"""
POD = """---
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  resourceClaims: [{name: c, resourceClaimTemplateName: t}]
  containers: [{name: main, image: i, resources: {claims: [{name: c}]}}]
"""


def test_a_step_of_two_claims_is_undone_with_the_last_of_them(tmp_path: Path) -> None:
    backend, pods = tmp_path / "board.py", tmp_path / "pods.yaml"
    backend.write_text(STEPS)
    pods.write_text(PODS + POD.replace("NAME", "a") + POD.replace("NAME", "b"))
    done = run(backend, "-f", str(pods))
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith(("applied", "undone", "unprepared "))]
    assert told == [
        "applied with None",
        "applied with told",
        "unprepared two",
        "unprepared one",
        "undone to old with told",
    ]


def test_a_breakpoint_stops_in_the_backend(tmp_path: Path) -> None:
    backend = tmp_path / "mine.py"
    backend.write_text(BACKEND.replace("        edits =", "        breakpoint()\n        edits ="))
    done = run(backend, typed="p 'devices:', claim.devices[0].device\ncontinue\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "('devices:', 'one')" in done.stdout


@pytest.fixture
def unchanged() -> Iterator[None]:
    """The variables and the path of modules are after the test what they were."""
    environ, path = dict(os.environ), [*sys.path]
    yield
    os.environ.clear()
    os.environ.update(environ)
    sys.path[:] = path


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("found", "put", "code", "told"),
    [
        pytest.param('print("undone"', "1 / 0; print(1", 1, "unprepare failed: ZeroDivisionError", id="call"),
        pytest.param("yield Mach", "1 / 0; yield Mach", 1, "connect failed: ZeroDivisionError", id="connect"),
        pytest.param("for device in claim.devices]", "for _ in ()]", 1, "prepare breaks the contract", id="answer"),
        pytest.param('"one"', '"ONE"', 1, "pod default/sample cannot be scheduled", id="no device"),
        pytest.param("DRIVER =", "NAME =", 2, "names no driver: set DRIVER", id="driver"),
    ],
)
def test_what_fails_is_told_without_a_traceback_of_ours(
    found: str,
    put: str,
    code: int,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    backend = tmp_path / f"fails_{abs(hash(put))}.py"  # imported here, so each is another module
    backend.write_text(BACKEND.replace(found, put))
    assert main(["dev", "--in-process", "--backend", str(backend)]) == code
    text = "".join(capsys.readouterr())
    assert told in text
    assert "pydra_dev" not in text
