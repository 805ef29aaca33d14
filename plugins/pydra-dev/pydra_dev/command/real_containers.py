"""`pydra dev --run`: the containers of pods for real, by runc or crun, with what their CDI devices changed.

No image is pulled: a container sees the programs and libraries of this machine (/usr, /etc and the like; what it writes
there is lost), and below /dev only what the CDI devices give it. It shares the network of the machine.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
from anyio.abc import ByteReceiveStream, TaskGroup
from msgspec.structs import replace

from pydra.errors import SettingsError
from pydra_dev.container_runtime.cdi_injection import OciDevice, OciSpec
from pydra_dev.container_runtime.cdi_specs import Hook
from pydra_dev.kubelet.observations import ContainerCreated
from pydra_dev.output.terminal import read_lines

RUNTIMES = ("runc", "crun")
OVERLAID = ("etc", "opt", "usr", "bin", "lib", "lib64", "sbin")
"""Directories of the machine that containers see; a symbolic link is one there too."""
CAPABILITIES = (
    *("CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD"),
    *("CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID"),
    "CAP_SYS_CHROOT",
)
"""Those that containers have by default."""


ENDLESS = ("sleep", "infinity")
"""What a container without a command runs."""

_PID = "pid"
_LOOK = 0.1
"""Seconds between two looks whether containers have begun."""


def ends_by_itself(step: ContainerCreated) -> bool:
    """Whether the container ends when its work is done, as far as its pod says."""
    return step.is_init or (step.policy != "Always" and step.after.args not in ((), ENDLESS))


def find_runtime(name: str) -> str:
    """The path of a container runtime; `name` empty: of the first that is installed. Raises SettingsError."""
    if name and os.path.basename(name) not in RUNTIMES:
        hint = "; podman itself uses one of them" if name == "podman" else ""
        raise SettingsError([f"--run: {name} is not a supported runtime: it must be {' or '.join(RUNTIMES)}{hint}"])
    wanted = (name,) if name else RUNTIMES
    found = [path for one in wanted if (path := shutil.which(one)) is not None]
    if not found:
        raise SettingsError([f"--run: there is no {' or '.join(wanted)} on PATH; install runc or crun"])
    if os.geteuid() != 0:
        raise SettingsError(["--run: containers need root; run `sudo pydra dev ...`, or leave --run out"])
    return found[0]


def build_config(spec: OciSpec, hostname: str, bundle: str) -> dict[str, Any]:
    """The configuration of a container in the OCI's format; what it writes into its directories is below `bundle`."""
    environment = [f"{name}={value}" for name, value in (one.partition("=")[::2] for one in spec.env)]
    capabilities = {kind: list(CAPABILITIES) for kind in ("bounding", "effective", "permitted")}
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/sys", "type": "bind", "source": "/sys", "options": ["rbind", "ro"]},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"]},
        {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev", "mode=1777"]},  # noqa: S108
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777"]},  # noqa: S108
    ]
    mounts += [
        _overlay(name, bundle) for name in OVERLAID if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")
    ]
    mounts += [
        {
            "destination": one.container_path,
            "source": one.host_path,
            "options": list(one.options),
            **({"type": one.type} if one.type else {}),
        }
        for one in spec.mounts
    ]
    hooks: dict[str, list[dict[str, Any]]] = {}
    for hook in spec.hooks:
        hooks.setdefault(hook.hook_name, []).append(_build_hook(hook))
    return {
        "ociVersion": "1.0.2",
        "hostname": hostname,
        "process": {
            "terminal": False,
            "user": {"uid": spec.uid, "gid": spec.gid, "additionalGids": list(spec.additional_gids)},
            "args": list(spec.args or ENDLESS),
            "env": environment,
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": capabilities,
        },
        "root": {"path": "rootfs"},
        "mounts": mounts,
        **({"hooks": hooks} if hooks else {}),
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")],
            "devices": [_build_device(one) for one in spec.devices],
            "resources": {"devices": [{"allow": False, "access": "rwm"}, *map(_build_access, spec.devices)]},
        },
    }


def _overlay(name: str, bundle: str) -> dict[str, Any]:
    written = f"{bundle}/written/{name}"
    options = [f"lowerdir=/{name}", f"upperdir={written}/upper", f"workdir={written}/work"]
    return {"destination": f"/{name}", "type": "overlay", "source": "overlay", "options": options}


def _build_device(device: OciDevice) -> dict[str, Any]:
    found = {
        "path": device.path,
        "type": device.type,
        "major": device.major,
        "minor": device.minor,
        "fileMode": device.file_mode,
        "uid": device.uid,
        "gid": device.gid,
    }
    return {name: value for name, value in found.items() if value is not None}


def _build_access(device: OciDevice) -> dict[str, Any]:
    allow = bool(device.access)
    access = device.access or "rwm"
    return {"allow": allow, "type": device.type, "major": device.major, "minor": device.minor, "access": access}


def _build_hook(hook: Hook) -> dict[str, Any]:
    given = {"path": hook.path, "args": list(hook.args), "env": list(hook.env), "timeout": hook.timeout}
    return {name: value for name, value in given.items() if value}


Tell = Callable[[str, str], None]
"""Told the container, `main of pod default/p`, and a line that it wrote, or how it ended."""


class Containers:
    """Real containers below one directory."""

    def __init__(self, runtime: str, root: str, tasks: TaskGroup, tell: Tell) -> None:
        self._runtime = runtime
        self._root = f"{root}/containers"
        self._tasks = tasks
        self._tell = tell
        self._ids: dict[str, set[str]] = {}
        self._running: dict[tuple[str, str], bool] = {}
        """Whether each ends by itself; by its title and its name for the runtime."""
        self._inits: dict[str, list[anyio.Event]] = {}
        """By pod, that its init containers have done their work, or that it is stopped."""
        self._ended = anyio.Event()
        self.failed = ""
        """The last that did not end with status 0, although it was not stopped."""

    def start(self, step: ContainerCreated, *, ends: bool) -> None:
        """Start a container that the kubelet has created; `ends`: it runs until its work is done."""
        name = f"{step.pod.replace('/', '-')}-{step.container}"
        self._ids.setdefault(step.pod, set()).add(name)
        self._running[f"{step.container} of pod {step.pod}", name] = ends
        inits, done = self._inits.setdefault(step.pod, []), anyio.Event()
        before = inits[-1] if inits else None
        if step.is_init:
            inits.append(done)
        self._tasks.start_soon(self._run_in_turn, step, name, before, done, name=f"container {name}")

    async def stop(self, pod: str) -> None:
        """Kill a pod's containers and remove what is left of them."""
        names = self._ids.pop(pod, ())
        for done in self._inits.pop(pod, ()):
            done.set()
        for name in names:
            command = [*self._command(), "delete", "--force", name]
            with anyio.CancelScope(shield=True):
                await anyio.run_process(command, check=False, stdout=None, stderr=None)

    async def stop_all(self) -> None:
        """Kill all containers."""
        for pod in tuple(self._ids):
            await self.stop(pod)

    async def wait_ended(self, *, seconds: float, endless_seconds: float) -> None:
        """Wait until those with work to do have ended and the others have begun, then for these, at most so long.

        One that has work to do and still runs then, or has not begun, has failed.
        """
        with anyio.move_on_after(seconds):
            while self._list_late(seconds) and not self.failed:
                with anyio.move_on_after(_LOOK):
                    await self._ended.wait()
        for what in self._list_late(seconds):
            self.failed = self.failed or f"{what}; --timeout gives it more"
        with anyio.move_on_after(0 if self.failed else endless_seconds):
            while self._running:
                await self._ended.wait()

    def _list_late(self, seconds: float) -> list[str]:
        """What is not as it shall be after so long: the runtime writes the file when a container's program begins."""
        running = [f"{title} still runs after {seconds:g} s" for (title, _), ends in self._running.items() if ends]
        return running + [
            f"{title} has not begun after {seconds:g} s, as when a hook of its devices hangs"
            for (title, name), ends in self._running.items()
            if not ends and not os.path.exists(f"{self._root}/{name}/{_PID}")
        ]

    def _command(self) -> list[str]:
        return [self._runtime, "--root", f"{self._root}/state"]

    async def _run_in_turn(
        self, step: ContainerCreated, name: str, before: anyio.Event | None, done: anyio.Event
    ) -> None:
        title = f"{step.container} of pod {step.pod}"
        try:
            if before is not None:
                await before.wait()
            if name not in self._ids.get(step.pod, ()):  # the pod was stopped meanwhile
                return
            status = await self._run(step, name)
        finally:
            self._running.pop((title, name), None)
            self._ended.set()
            self._ended = anyio.Event()
        if name in self._ids.get(step.pod, ()):
            self._tell(title, f"ended with status {status}")
            self.failed = f"{title} ended with status {status}" if status else self.failed
            if not status:
                done.set()

    async def _run(self, step: ContainerCreated, name: str) -> int:
        title, bundle = f"{step.container} of pod {step.pod}", f"{self._root}/{name}"
        spec = step.after
        if step.is_init and not spec.args:  # the command of its image, which is not here, would end
            spec = replace(spec, args=("true",))
        write_bundle(bundle, build_config(spec, step.pod.rpartition("/")[2], bundle))
        command = [*self._command(), "run", "--pid-file", f"{bundle}/{_PID}", "--bundle", bundle, name]
        async with await anyio.open_process(command, stdin=None, start_new_session=True) as process:
            async with anyio.create_task_group() as readers:
                for stream in filter(None, (process.stdout, process.stderr)):
                    readers.start_soon(self._read, title, stream)
            return await process.wait()

    async def _read(self, title: str, stream: ByteReceiveStream) -> None:
        async for line in read_lines(stream):
            self._tell(title, line)


def write_bundle(bundle: str, config: dict[str, Any]) -> None:
    """Write what the runtime needs below a new directory."""
    for name in OVERLAID:
        if os.path.islink(f"/{name}"):
            os.makedirs(f"{bundle}/rootfs", exist_ok=True)
            os.symlink(os.readlink(f"/{name}"), f"{bundle}/rootfs/{name}")
        elif os.path.isdir(f"/{name}"):
            for part in (f"rootfs/{name}", f"written/{name}/upper", f"written/{name}/work"):
                os.makedirs(f"{bundle}/{part}")
    with open(f"{bundle}/config.json", "wb") as file:
        file.write(msgspec.json.encode(config))


@asynccontextmanager
async def run_containers(runtime: str, root: str, tell: Tell) -> AsyncIterator[Containers]:
    """Real containers inside the block."""
    async with anyio.create_task_group() as tasks:
        containers = Containers(runtime, root, tasks, tell)
        try:
            yield containers
        finally:
            await containers.stop_all()
            tasks.cancel_scope.cancel()
