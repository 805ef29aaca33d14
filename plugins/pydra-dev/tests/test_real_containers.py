"""`pydra dev --run`: the container spec that a runtime gets, and the container that it makes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from pydra.errors import SettingsError
from pydra_dev.command.dev_command import DevCommand, run_until_signal
from pydra_dev.command.options import Options
from pydra_dev.command.real_containers import build_config, find_runtime, run_containers
from pydra_dev.container_runtime.cdi_injection import OciDevice, OciSpec
from pydra_dev.container_runtime.cdi_specs import Hook, Mount
from pydra_dev.kubelet.observations import ContainerCreated

BACKEND = """
from pathlib import Path
from pydra import ContainerEdits, Device, Inventory
DRIVER = "mine.example.com"
EDITS = ContainerEdits().with_device_node("/dev/mine", host_path="/dev/null").with_env("MINE", "1")
EDITS = EDITS.with_mount("/etc/hostname", "/etc/mine")
async def discover(): return Inventory(devices=(Device(name="one"),))
async def prepare(claim): return [device.prepared(EDITS) for device in claim.devices]
async def unprepare(claim, prepared):
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    print("processes:", [one for one in lines if b"started; sleep" in one])
"""
POD = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: t}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: mine.example.com}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: real}
spec:
  restartPolicy: Never
  resourceClaims: [{name: c, resourceClaimTemplateName: t}]
  containers:
  - {name: main, image: i, command: [sh, -c, COMMAND], resources: {claims: [{name: c}]}}
"""


def test_the_configuration_has_what_the_devices_changed(tmp_path: Path) -> None:
    spec = OciSpec(
        args=("true",),
        env=("A=1", "B="),
        gid=3,
        additional_gids=(44,),
        devices=(OciDevice(path="/dev/x", type="c", major=1, minor=3, uid=7, access="rw"),),
        mounts=(Mount(host_path="/h", container_path="/c", options=("ro", "bind")),),
        hooks=(Hook(hook_name="createContainer", path="/bin/hook", args=("hook", "now")),),
    )
    config = build_config(spec, "p", str(tmp_path))
    process = config["process"]
    assert (process["args"], process["env"]) == (["true"], ["A=1", "B="])
    assert process["user"] == {"uid": 0, "gid": 3, "additionalGids": [44]}
    assert config["mounts"][-1] == {"destination": "/c", "source": "/h", "options": ["ro", "bind"]}
    assert config["hooks"] == {"createContainer": [{"path": "/bin/hook", "args": ["hook", "now"]}]}
    assert config["linux"]["devices"] == [{"path": "/dev/x", "type": "c", "major": 1, "minor": 3, "uid": 7}]
    denied, allowed = config["linux"]["resources"]["devices"]
    assert denied == {"allow": False, "access": "rwm"}
    assert allowed == {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rw"}


def test_a_runtime_that_is_not_installed_or_not_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="podman is not a supported runtime: it must be runc or crun; podman"):
        find_runtime("podman")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SettingsError, match="there is no runc or crun on PATH"):
        find_runtime("")


needs_runc = pytest.mark.skipif(shutil.which("runc") is None or os.geteuid() != 0, reason="needs root and runc")


FIRST = "{name: first, image: i, command: [sh, -c, 'sleep 4; echo $MINE'], resources: {claims: [{name: c}]}}"
BESIDE = "{name: beside, image: i, command: [sleep, '1000'], restartPolicy: Always}"  # nobody waits for its end
BARE = "{name: bare, image: i}"  # it has the command of its image, which is not here
WITH_INIT = POD.replace("  containers:", f"  initContainers: [{FIRST}, {BARE}, {BESIDE}]\n  containers:")


async def run_pod(directory: Path, pod: str) -> tuple[int, str]:
    """How `pydra dev --run` ends with this pod, and what it says."""
    (directory / "mine.py").write_text(BACKEND)
    (directory / "pod.yaml").write_text(pod)
    said: list[str] = []
    options = Options(backend=f"{directory}/mine.py", manifests=(f"{directory}/pod.yaml",), once=True, run="runc")
    return await run_until_signal(DevCommand(options, write=said.append)), "\n".join(said)


@needs_runc
async def test_a_container_runs_with_its_devices_after_the_init_containers_of_its_pod(tmp_path: Path) -> None:
    command = "sleep 4; test -c /dev/mine && cat /etc/mine > /dev/mine && echo found $MINE"
    code, text = await run_pod(tmp_path, WITH_INIT.replace("COMMAND", f'"{command}"'))
    assert code == 0, text
    assert text.index("first of pod default/real: 1") < text.index("main of pod default/real: found 1")


@needs_runc
async def test_a_container_that_fails_fails_the_run(tmp_path: Path) -> None:
    code, text = await run_pod(tmp_path, POD.replace("COMMAND", '"exit 3"'))
    assert code == 1
    assert "FAILED: container main of pod default/real ended with status 3" in text


@needs_runc
async def test_no_container_starts_after_an_init_container_that_failed(tmp_path: Path) -> None:
    with_init = POD.replace(
        "  containers:", "  initContainers: [{name: first, image: i, command: [sh, -c, exit 3]}]\n  containers:"
    )
    code, text = await run_pod(tmp_path, with_init.replace("COMMAND", '"echo last"'))
    assert code == 1
    assert "FAILED: container first of pod default/real ended with status 3" in text
    assert "last" not in text


@needs_runc
@pytest.mark.parametrize("ends", [True, False])
async def test_a_container_with_work_to_do_has_failed_when_its_time_is_over(ends: bool, tmp_path: Path) -> None:
    spec = OciSpec(args=("/bin/sleep", "1000"))
    step = ContainerCreated(pod="default/real", container="main", cdi_ids=(), before=spec, after=spec)
    async with run_containers("runc", str(tmp_path), lambda *_: None) as containers:
        containers.start(step, ends=ends)
        await containers.wait_ended(seconds=0.2 if ends else 60, endless_seconds=0.1)
        told = "main of pod default/real still runs after 0.2 s; --timeout gives it more"
        assert containers.failed == (told if ends else "")


@needs_runc
async def test_a_container_whose_hook_hangs_has_failed_when_its_time_is_over(tmp_path: Path) -> None:
    hang = Hook(hook_name="createContainer", path="/bin/sleep", args=("sleep", "2"))
    spec = OciSpec(args=("/bin/sleep", "1000"), hooks=(hang,))
    step = ContainerCreated(pod="default/real", container="main", cdi_ids=(), before=spec, after=spec)
    async with run_containers("runc", str(tmp_path), lambda *_: None) as containers:
        containers.start(step, ends=False)
        await containers.wait_ended(seconds=0.2, endless_seconds=0.1)
        assert "main of pod default/real has not begun after 0.2 s, as when a hook of its" in containers.failed


@needs_runc
async def test_a_container_is_stopped_before_its_claim_is_unprepared(tmp_path: Path) -> None:
    """The backend looks for the container's process, which it knows by its argument."""
    endless = WITH_INIT.replace("restartPolicy: Never", "restartPolicy: Always")
    code, text = await run_pod(tmp_path, endless.replace("COMMAND", f'"echo started; sleep 1000; echo {tmp_path}"'))
    assert code == 0, text
    assert text.index("first of pod default/real: 1") < text.index("main of pod default/real: started")
    assert "processes: []" in text
