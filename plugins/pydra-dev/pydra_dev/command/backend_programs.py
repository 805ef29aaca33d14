"""What a backend needs on several nodes beside its agents, and its programs, which run as processes of this machine.

The needs are in `samples/BACKEND.nodes.yaml`: kinds of its own, a controller, programs in containers.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files

import anyio
import msgspec
from anyio.abc import Process, TaskGroup

from pydra.yaml_documents import decode_yaml
from pydra_dev.api.errors import JsonObject
from pydra_dev.command.wait_for_step import RunError
from pydra_dev.kubelet.observations import ContainerCreated
from pydra_dev.node import END_WITH_PARENT, EmbeddedNode
from pydra_dev.output.descriptions import Paragraph
from pydra_dev.output.terminal import read_lines

_LOG_START = re.compile(r"^\d\d:\d\d:\d\d\.\d+ (INFO +[\w.-]+: )?")
_RUN = f"{END_WITH_PARENT}os.execv(sys.argv[1], sys.argv[1:])"


class Container(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a program runs outside its container: variables with the places that paths of the container have here.

    `hosts` is the variable with the path of the container's /etc/hosts.
    """

    paths: Mapping[str, str] = {}
    hosts: str = ""


class Needs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a backend needs on several nodes, beside its agents.

    `definitions` is the place of its CustomResourceDefinitions, as `module:attribute`, `controller` a command, and
    `containers` has the programs that run for real, by name. The Pod of `manifests` is created once for each node.
    """

    definitions: str = ""
    controller: tuple[str, ...] = ()
    containers: Mapping[str, Container] = {}
    manifests: tuple[JsonObject, ...] = ()


def read_needs(backend: str) -> Needs:
    """Those of a backend; none for one that has no such file."""
    place = files("pydra_dev").joinpath("samples", f"{backend}.nodes.yaml")
    return msgspec.convert(decode_yaml(place.read_bytes()), Needs) if place.is_file() else Needs()


def load_definitions(place: str) -> Sequence[JsonObject]:
    """The CustomResourceDefinitions at `module:attribute`."""
    module, _, attribute = place.partition(":")
    return list(getattr(importlib.import_module(module), attribute)) if place else []


class Programs:
    """The processes of the controller and of containers, by pod, with the kubeconfig and the root of the first node.

    `failed` says which has ended by itself.
    """

    def __init__(
        self, needs: Needs, node: EmbeddedNode, tasks: TaskGroup, backend: str, say: Callable[[Paragraph], None]
    ) -> None:
        self.failed = ""
        self._containers = needs.containers
        self._node = node
        self._tasks = tasks
        self._backend = backend
        self._say = say
        self._processes = dict[str, list[Process]]()

    async def start(self, title: str, command: Sequence[str], environ: Mapping[str, str], pod: str = "") -> None:
        """Start a program that is installed beside this one; it ends with the pod. Raises RunError."""
        beside = os.path.dirname(sys.executable)
        path = shutil.which(command[0], path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
        if path is None:
            raise RunError(f"{command[0]} is not installed: install the distribution of {self._backend}")
        known = {"KUBECONFIG": str(self._node.server.kubeconfig), "PYDRA_LOG_FORMAT": "text"}
        process = await anyio.open_process(
            [sys.executable, "-c", _RUN, str(os.getpid()), path, *command[1:]],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            env={**os.environ, **known, **environ},
            start_new_session=True,
        )
        self._processes.setdefault(pod, []).append(process)
        self._say(Paragraph(headline=f"{title}: started: {' '.join(command)} (pid {process.pid})"))
        self._tasks.start_soon(self._follow, title, process, pod, name=f"output of {title}")

    def note_container(self, node: str, step: ContainerCreated) -> None:
        """Start the program of a container, if it is one that runs for real."""
        if {*step.after.args[:1]} & self._containers.keys():
            self._tasks.start_soon(self._start_container, node, step, name=f"container of {step.pod}")

    async def kill(self, pod: str) -> None:
        """End a pod's programs as the end of its node does."""
        for program in self._processes.pop(pod, ()):
            os.killpg(program.pid, signal.SIGKILL)  # as the end of a container's first process ends the others
            await program.wait()

    async def stop(self, pod: str) -> None:
        """End a pod's programs, which may clean up."""
        for program in self._processes.pop(pod, ()):
            if program.returncode is None:
                program.terminate()
            await program.wait()

    async def stop_all(self) -> None:
        """End what still runs."""
        for pod in tuple(self._processes):
            await self.stop(pod)

    async def _start_container(self, node: str, step: ContainerCreated) -> None:
        container = self._containers[step.after.args[0]]
        places = {one.container_path: one.host_path for one in step.after.mounts}
        given = dict(one.split("=", 1) for one in step.after.env if not one.startswith("PATH="))
        hosts = anyio.Path(self._node.root, f"hosts-{step.pod.replace('/', '-')}")
        await hosts.write_text("127.0.0.1\tlocalhost\n")
        paths = {name: places.get(path, path) for name, path in container.paths.items()}
        paths.update({container.hosts: str(hosts)} if container.hosts else {})
        await self.start(f"{node}, {step.container}", step.after.args, {**given, **paths}, step.pod)

    async def _follow(self, title: str, process: Process, pod: str) -> None:
        """Tell what a program says, and that it has ended by itself."""
        assert process.stdout is not None
        async for line in read_lines(process.stdout):
            self._say(Paragraph(headline=f"{title}: {_LOG_START.sub('', line)}"))
        status = await process.wait()
        if process in self._processes.get(pod, ()):
            self.failed = f"{title} ended with status {status}"
