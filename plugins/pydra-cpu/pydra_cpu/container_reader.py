"""Reads which containers run on the node, and which CPUs the kernel lets them run on.

A container is found by the OCI bundle that its runtime keeps while it runs; the bundle says what the container was
created with. Source: OCI runtime specification, config.md; annotations of containerd's CRI plugin and of CRI-O; Linux,
Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/cpusets.rst.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import msgspec

from pydra import PydraError
from pydra_cpu.cpu_list import parse_kernel_list
from pydra_cpu.pinning import Container
from pydra_pci import Tree

_TASKS = "io.containerd.runtime.v2.task/k8s.io"
_BUNDLES = {
    f"/run/containerd/{_TASKS}": "config.json",
    f"/run/k3s/containerd/{_TASKS}": "config.json",
    f"/run/k0s/containerd/{_TASKS}": "config.json",
    f"/var/snap/microk8s/common/run/containerd/{_TASKS}": "config.json",
    "/run/containers/storage/overlay-containers": "userdata/config.json",
}
"""Directories with a directory for each container, and the file in that: of containerd, also in k3s, RKE2, k0s and
MicroK8s, and of CRI-O."""

_TYPE = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType")
_NAME = ("io.kubernetes.cri.container-name", "io.kubernetes.container.name")
_POD = ("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name")
_NAMESPACE = ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace")

_CGROUPS = "/sys/fs/cgroup"


class NothingVisible(PydraError):
    """The containers of the node cannot be seen from here."""

    reason = "NothingVisible"


class _Cpu(msgspec.Struct, frozen=True):
    cpus: str = ""


class _Resources(msgspec.Struct, frozen=True):
    cpu: _Cpu | None = None


class _Linux(msgspec.Struct, frozen=True, rename="camel"):
    cgroups_path: str = ""
    resources: _Resources | None = None


class _Process(msgspec.Struct, frozen=True):
    env: tuple[str, ...] = ()


class _Bundle(msgspec.Struct, frozen=True):
    linux: _Linux
    process: _Process
    annotations: Mapping[str, str] = {}

    def find(self, names: tuple[str, str]) -> str:
        return next((self.annotations[name] for name in names if name in self.annotations), "")


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A container that runs; an empty set of CPUs or of NUMA nodes means that nothing restricts it."""

    container: Container
    """With the CPUs that its cgroup names."""
    memory: frozenset[int] = frozenset()
    """The NUMA nodes that its cgroup names."""
    effective: frozenset[int] = frozenset()
    """The CPUs that it can really run on: online, and allowed by the cgroups above."""
    created_with: frozenset[int] = frozenset()
    """The CPUs that the runtime created it with."""


def read_containers(tree: Tree) -> tuple[Running, ...]:
    """Read the containers of pods, without sandboxes. Blocks.

    Raises:
        NothingVisible: no container runtime's directory can be read from here.
    """
    found: list[Running] = []
    places = 0
    for place, file in _BUNDLES.items():
        try:
            names = sorted(os.listdir(tree.here(place)))
        except OSError:
            continue
        places += 1
        for name in names:
            found += _read_container(tree, name, tree.here(f"{place}/{name}/{file}"))
    if not places:
        raise NothingVisible(
            f"containers cannot be seen: none of {', '.join(map(tree.here, _BUNDLES))} can be read; run it as root, "
            "in the agent's pod or on the node"
        )
    return tuple(found)


def read_allowed(tree: Tree, cgroups_path: str) -> frozenset[int] | None:
    """The CPUs that a cgroup names, by its path in the bundle; all if empty, None while there is no such cgroup."""
    groups = _find_cgroup(tree, cgroups_path)
    return _read_list(tree, f"{groups}/cpuset.cpus") if tree.exists(f"{groups}/cpuset.cpus") else None


def _read_container(tree: Tree, name: str, path: str) -> Iterator[Running]:
    """The container of the bundle; nothing for a sandbox, and for one that has just ended."""
    try:
        bundle = msgspec.json.decode(tree.read(path), type=_Bundle)
    except msgspec.DecodeError:
        return
    groups = _find_cgroup(tree, bundle.linux.cgroups_path)
    if bundle.find(_TYPE) != "container" or not tree.exists(groups):
        return
    container = Container(
        id=name,
        namespace=bundle.find(_NAMESPACE),
        pod=bundle.find(_POD),
        name=bundle.find(_NAME),
        env=bundle.process.env,
        cpus=_read_list(tree, f"{groups}/cpuset.cpus"),
    )
    resources = bundle.linux.resources or _Resources()
    yield Running(
        container=container,
        memory=_read_list(tree, f"{groups}/cpuset.mems"),
        effective=_read_list(tree, f"{groups}/cpuset.cpus.effective")
        or _read_list(tree, f"{groups}/cpuset.effective_cpus"),
        created_with=parse_kernel_list((resources.cpu or _Cpu()).cpus),
    )


def _find_cgroup(tree: Tree, path: str) -> str:
    """The directory of the cgroup that a bundle names, as systemd (`slice:prefix:name`) or by its path."""
    root = _CGROUPS if tree.exists(tree.here(f"{_CGROUPS}/cgroup.controllers")) else f"{_CGROUPS}/cpuset"
    parent, colon, rest = path.partition(":")
    if colon:
        prefix, _, name = rest.partition(":")
        path = f"{_expand_slice(parent)}/{prefix}-{name}.scope"
    return tree.here(f"{root}/{path.strip('/')}")


def _expand_slice(name: str) -> str:
    """`a-b.slice` is below `a.slice`."""
    words = name.removesuffix(".slice").split("-")
    return "/".join(f"{'-'.join(words[: place + 1])}.slice" for place in range(len(words)))


def _read_list(tree: Tree, path: str) -> frozenset[int]:
    return parse_kernel_list(tree.read(path))
