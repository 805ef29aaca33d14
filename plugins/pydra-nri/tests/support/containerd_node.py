"""A real containerd with its own sockets, state and image, where there is one and this process may run containers."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import platform
import re
import shutil
import struct
import subprocess
import tarfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio

from cri_messages import (
    ContainerConfig,
    ContainerMetadata,
    CreateContainerRequest,
    Empty,
    Identified,
    ImageSpec,
    PodConfig,
    PodMetadata,
    Resources,
    RunPodSandboxRequest,
    UpdateContainerResourcesRequest,
    Variable,
)
from pydra_nri.protobuf import Value, decode, encode

IMAGE = "docker.io/library/waits:1"
_VARIABLE = "TEST_CONTAINERD"
"""The directory of another containerd's programs."""

_CONFIG = """\
version = 2
root = "{root}/lib"
state = "{root}/run"
[grpc]
  address = "{root}/containerd.sock"
[ttrpc]
  address = "{root}/containerd.sock.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{root}/cni/bin"
    conf_dir = "{root}/cni/conf"
[plugins."io.containerd.internal.v1.opt"]
  path = "{root}/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  socket_path = "{root}/nri.sock"
  plugin_path = "{root}/nri/plugins"
  plugin_config_path = "{root}/nri/conf"
"""

_NETWORK = {"cniVersion": "0.4.0", "name": "nothing", "plugins": [{"type": "nothing"}]}
_NETWORK_PLUGIN = """\
#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"0.4.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}' ;;
ADD) echo '{"cniVersion":"0.4.0","interfaces":[{"name":"eth0","sandbox":"'$CNI_NETNS'"}],
"ips":[{"version":"4","interface":0,"address":"10.88.0.2/24"}]}' ;;
esac
"""


def find_problem() -> str:
    """Why no containerd can be started here; empty if it can."""
    if os.geteuid() != 0:
        return "needs root, to run containers"
    if platform.machine() != "x86_64":
        return "the container's program is for x86-64"
    missing = [name for name in ("containerd", "ctr", "runc") if not shutil.which(name, path=_find_path())]
    if missing:
        return f"there is no {missing[0]} here"
    program = shutil.which("containerd", path=_find_path()) or ""
    stated = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return f"{stated.strip()} is older than NRI" if re.search(r" v?1\.[0-6]\.", stated) else ""


def _find_path() -> str:
    return f"{os.environ.get(_VARIABLE, '')}:{os.environ['PATH']}:/usr/sbin"


class ContainerdNode:
    """The kubelet's calls to one containerd."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process: asyncio.subprocess.Process | None = None
        self._pods: list[str] = []
        self.nri_socket = str(root / "nri.sock")

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        environ = {**os.environ, "PATH": _find_path()}
        arguments = ("containerd", "--config", str(self._root / "config.toml"))
        with (self._root / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*arguments, env=environ, stdout=log, stderr=log)
        await self.call("Version", Empty(), wait=True)

    async def kill(self) -> None:
        """SIGKILL; containers go on."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def import_image(self) -> None:
        """The image whose only program waits for its end."""
        archive = self._root / "image.tar"
        archive.write_bytes(build_image())
        arguments = (
            "ctr",
            "--address",
            str(self._root / "containerd.sock"),
            "--namespace",
            "k8s.io",
            "images",
            "import",
        )
        process = await asyncio.create_subprocess_exec(
            *(*arguments, "--local", "--snapshotter", "native", str(archive)), env={**os.environ, "PATH": _find_path()}
        )
        assert await process.wait() == 0

    async def call(self, method: str, request: Value, *, wait: bool = False) -> str:
        """Call the runtime; the ID in its answer."""
        async with grpc.aio.insecure_channel(f"unix://{self._root}/containerd.sock") as channel:
            unary = channel.unary_unary(f"/runtime.v1.RuntimeService/{method}")
            return decode(await unary(encode(request), wait_for_ready=wait, timeout=60), Identified).id

    async def run_pod(self, name: str) -> tuple[str, PodConfig]:
        """Its sandbox's ID."""
        config = PodConfig(
            metadata=PodMetadata(name=name, uid=f"uid-{name}", namespace="default"), labels={"app": name}
        )
        self._pods.append(await self.call("RunPodSandbox", RunPodSandboxRequest(config=config)))
        return self._pods[-1], config

    async def end_container(self, container: str) -> None:
        """Stop and remove it."""
        await self.call("StopContainer", Identified(id=container))
        await self.call("RemoveContainer", Identified(id=container))

    async def end_pod(self, pod: str) -> None:
        """Stop and remove it, with its containers."""
        await self.call("StopPodSandbox", Identified(id=pod))
        await self.call("RemovePodSandbox", Identified(id=pod))
        self._pods.remove(pod)

    async def run_container(self, pod: tuple[str, PodConfig], name: str, env: Mapping[str, str] = {}) -> str:
        """Create and start; its ID."""
        config = ContainerConfig(
            metadata=ContainerMetadata(name=name),
            image=ImageSpec(image=IMAGE),
            envs=tuple(Variable(key=key, value=value) for key, value in env.items()),
        )
        request = CreateContainerRequest(pod_sandbox_id=pod[0], config=config, sandbox_config=pod[1])
        container = await self.call("CreateContainer", request)
        await self.call("StartContainer", Identified(id=container))
        return container

    async def update_container(self, container: str, **resources: int | str) -> None:
        """As the kubelet does when it resizes a pod, or its CPU manager is static."""
        linux = decode(encode(Resources(**resources)), Resources)  # type: ignore[arg-type]
        request = UpdateContainerResourcesRequest(container_id=container, linux=linux)
        await self.call("UpdateContainerResources", request)

    def read_cpus(self, container: str) -> str:
        """The CPUs that the kernel gives a running container."""
        status = Path(f"/proc/{self._read_pid(container)}/status").read_text()
        return next(line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list"))

    def find_cgroup_file(self, container: str, name: str) -> Path:
        """A file of the cgroup that has a running container's CPUs."""
        for line in Path(f"/proc/{self._read_pid(container)}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            root = "/sys/fs/cgroup/cpuset" if "cpuset" in controllers.split(",") else "/sys/fs/cgroup"
            if (found := Path(f"{root}{path}/{name}")).exists():
                return found
        raise FileNotFoundError(name)

    def _read_pid(self, container: str) -> str:
        return (self._root / "run/io.containerd.runtime.v2.task/k8s.io" / container / "init.pid").read_text()

    async def stop(self) -> None:
        """End all pods and the runtime."""
        for pod in tuple(self._pods):
            await self.end_pod(pod)
        await self.kill()


def _build_program() -> bytes:
    """An ELF file: pause(), again and again."""
    code = b"\xb8\x22\x00\x00\x00\x0f\x05\xeb\xf7"
    base, size = 0x400000, 64 + 56 + len(code)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 62, 1, base + 120, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    return header + struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000) + code


def build_image() -> bytes:
    """A docker archive with that program."""
    layer = _pack({"waits": _build_program()})
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/waits"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    files = {"manifest.json": json.dumps(manifest), "config.json": json.dumps(config)}
    return _pack({"layer.tar": layer, **{name: text.encode() for name, text in files.items()}})


def _pack(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o755
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


@asynccontextmanager
async def run_containerd(root: Path) -> AsyncIterator[ContainerdNode]:
    """A containerd below a directory with a short path; its pods end with it."""
    (root / "config.toml").write_text(_CONFIG.format(root=root, image=IMAGE))
    for folder in ("cni/bin", "cni/conf", "nri/plugins", "nri/conf"):
        (root / folder).mkdir(parents=True)
    (root / "cni/conf/10-nothing.conflist").write_text(json.dumps(_NETWORK))
    for name in ("nothing", "loopback"):
        (root / "cni/bin" / name).write_text(_NETWORK_PLUGIN)
        (root / "cni/bin" / name).chmod(0o755)
    node = ContainerdNode(root)
    try:
        await node.start()
        await node.import_image()
        yield node
    finally:
        await node.stop()
