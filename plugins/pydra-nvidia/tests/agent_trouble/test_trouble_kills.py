"""kill -9 of the backend, of the agent with it, and reboots: claims come and go all the same, and leave nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydra.kube.api_resources import PODS

if TYPE_CHECKING:
    from conftest import Scene
    from tests.integration.agent.process import Agent

    MakeScene = Callable[..., AbstractAsyncContextManager[Scene]]

MORTAL = Path(__file__).with_name("backends")
MPS = {"kind": "GpuConfig", "sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}}
SLICED = {
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
}


class Kind(NamedTuple):
    """What a claim asks for."""

    device: str
    profile: str = ""
    config: Mapping[str, Any] | None = None

    async def start(self, scene: Scene, name: str) -> None:
        await scene.start(name, self.device, profile=self.profile, config=self.config)


KINDS = {
    "mig": Kind("mig", "1g.10gb"),
    "mps": Kind("gpu", config=MPS),
    "time-slice": Kind("gpu", config=SLICED),
    "vfio": Kind("vfio"),
}


def unmount_all(path: Path) -> None:
    """What a reboot does."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if line.split()[1].startswith(str(path)):
            subprocess.run(["umount", line.split()[1]], check=True)


class Reaper:
    """Ends the backend and its agent before something that it does."""

    def __init__(self, scene: Scene) -> None:
        self._place = scene.path / "mortal"
        self._place.mkdir()
        self.flags = ("--backend", "mortal.nvidia:")
        path = os.pathsep.join(filter(None, [str(MORTAL), os.environ.get("PYTHONPATH", "")]))
        self.environ = {"MORTAL": str(self._place), "PYTHONPATH": path}

    def come(self, before: str) -> None:
        """From now on it waits for this."""
        draft = self._place / "draft"
        draft.write_text(before)
        draft.replace(self._place / "end")

    def done(self) -> list[str]:
        """What was done, or about to be."""
        file = self._place / "done"
        return file.read_text().splitlines() if file.exists() else []


KILLS = [
    ("mps", "run nvidia-cuda-mps-control -d", "nvmlDeviceSetComputeMode"),
    ("vfio", "write bind", "undo mig-mode-off"),
]
"""Before what agent and backend are killed, in the prepare and in the unprepare of a claim."""


async def test_claims_go_on_with_the_next_agent_when_the_last_was_killed(make_scene: MakeScene) -> None:
    async with make_scene(settings={"dynamic_mig": True, "vfio": True}) as scene, AsyncExitStack() as ended:
        reaper = Reaper(scene)

        async def start() -> Agent:
            return await ended.enter_async_context(scene.agent(*reaper.flags, environ=reaper.environ))

        agent = await start()
        for kind, preparing, unpreparing in KILLS:
            reaper.come(preparing)
            await KINDS[kind].start(scene, kind)
            await agent.process.wait()
            agent = await start()
            await scene.wait_running(kind)
            assert {text.partition(" ")[0] for text in scene.leftovers()} >= {"cdi", "record"}
            reaper.come(unpreparing)
            await scene.node.client.delete(PODS, kind, namespace="default")
            await agent.process.wait()
            assert scene.leftovers() != []
            agent = await start()
            await scene.end(kind)
            await scene.wait_clean()


async def test_a_reboot_leaves_nothing_to_undo_and_what_was_begun_is_prepared_again(make_scene: MakeScene) -> None:
    group = {"model": "h100-80gb", "count": 5}
    async with make_scene(group, settings={"dynamic_mig": True, "vfio": True}) as scene:
        reaper = Reaper(scene)
        names = ("mig", "mps", "time-slice", "vfio")
        async with scene.agent(*reaper.flags, environ=reaper.environ) as agent:
            for name in names:
                await KINDS[name].start(scene, name)
                await scene.wait_running(name)
            reaper.come("nvmlGpuInstanceCreateComputeInstance")
            await scene.start("begun", "mig", profile="3g.40gb")
            await agent.process.wait()
        boot = scene.boot_id_file.read_text()
        for pid in scene.daemons():
            os.kill(pid, signal.SIGKILL)
        unmount_all(scene.path)
        scene.inject.reboot()
        assert scene.boot_id_file.read_text() != boot
        async with scene.agent(*reaper.flags, environ=reaper.environ):
            await scene.wait_running("begun")
            (instance,) = (one for gpu in scene.gpus() for one in gpu.instances)
            assert instance.compute
            await scene.end(*names, "begun")
            await scene.wait_clean()
            assert [scene.errors(name) for name in names] == [[], [], [], []]
