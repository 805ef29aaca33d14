"""What `pydra doctor` says of containers that do not have the CPUs of their claims."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from pydra import AllocatedDevice, Claim, HeldClaim
from pydra_cpu import examine
from pydra_cpu.container_reader import NothingVisible, Running
from pydra_cpu.cpu_list import parse_cpu_list
from pydra_cpu.doctor_container_cpus import find_differences
from pydra_cpu.pinning import Container
from pydra_cpu.settings import Settings
from pydra_cpu.simulation.machine import Machine

UID = "11111111-2222-3333-4444-555555555555"
ENV = f"DRA_CPUSET_{UID}=2-3"
DEVICE = AllocatedDevice(request="r", pool="node", device="cpudevnuma000", share_id="s")
PLAN = [{"taken": "2-3", "cpus": "2-3", "memory": "0"}]
CLAIM = Claim(uid=UID, namespace="team", name="fast", devices=(DEVICE,), plan=PLAN)
HELD = (HeldClaim(claim=CLAIM, completed=True),)


def run(cpus: str, *, created: str = "", memory: str = "0", effective: str | None = None, env: str = ENV) -> Running:
    """A container with the CPUs of its cgroup, which is one of the claim unless `env` is something else."""
    container = Container(id="id", namespace="team", pod="pod", name="main", env=(env,), cpus=parse_cpu_list(cpus))
    return Running(
        container=container,
        memory=parse_cpu_list(memory),
        effective=parse_cpu_list(cpus if effective is None else effective),
        created_with=parse_cpu_list(created),
    )


def compare(*running: Running, manager: str = "", online: str = "0-7") -> list[str]:
    found = parse_cpu_list(online)
    return list(find_differences(running, HELD, offered=found, online=found, manager=manager))


SHARED = replace(run("", env=""), container=replace(run("", env="").container, id="shared", name="shared"))


def test_nothing_is_said_of_containers_that_have_what_claims_give_them() -> None:
    shared = replace(SHARED, container=replace(SHARED.container, cpus=parse_cpu_list("0-1,4-7")))
    assert compare(run("2-3", created="2-3"), shared) == []
    assert compare(SHARED) == [], "no container uses the claim, so that nothing restricts it"
    assert compare(shared) == [], "and one that was created after the claim gets its CPUs later"


@pytest.mark.parametrize(
    ("running", "manager", "says"),
    [
        (run("0-7", created="2-3"), "", "it was created with them, and something else has changed it since"),
        (run("0-7"), "", "it was created while the agent was not connected to the container runtime"),
        (run("0-1", created="4-5"), "", "the runtime has not carried out the last change"),
        (run("0-7", created="2-3"), "CPU manager policy static", "the kubelet has the CPU manager policy static"),
        (run("0-7", env=f"DRA_CPUSET_{UID}=0-7"), "", "which is not what claim team/fast has"),
    ],
    ids=["changed-later", "created-without-the-agent", "not-updated", "static", "forged"],
)
def test_a_container_on_other_cpus_is_named_with_the_reason(running: Running, manager: str, says: str) -> None:
    (text,) = compare(running, manager=manager)
    assert text.startswith("container main of pod team/pod ")
    assert says in text


def test_a_container_without_a_claim_that_runs_on_the_cpus_of_one_is_named() -> None:
    (text,) = compare(run("2-3", created="2-3"), SHARED)
    assert "container shared of pod team/pod may run on CPU 0-7, and claims leave to it 0-1,4-7" in text


@pytest.mark.parametrize(
    ("running", "online", "says"),
    [
        (run("2-3", created="2-3", effective="2"), "0-2,4-7", "CPU 3 is off-line; bring it back"),
        (run("2", created="2-3", effective="2"), "0-2,4-7", "CPU 3 is off-line; bring it back"),
        (run("2-3", created="2-3", effective="2"), "0-7", "a cgroup above, such as kubepods.slice, does not allow"),
    ],
    ids=["cgroup-v2", "cgroup-v1", "restricted-above"],
)
def test_a_container_that_cannot_use_all_of_its_cpus_is_named_with_the_reason(
    running: Running, online: str, says: str
) -> None:
    (text,) = compare(running, online=online)
    assert text.startswith("container main of pod team/pod cannot run on CPU 3, which its claims give it: ")
    assert says in text


def test_a_container_with_memory_from_elsewhere_is_named() -> None:
    (text,) = compare(run("2-3", created="2-3", memory="0-1"))
    assert "has memory of NUMA node 0-1, and its claims give it that of 0" in text


def write_containerd(host: Path, cgroups_path: str, **annotations: str) -> None:
    names = {
        "container-type": "container",
        "container-name": "main",
        "sandbox-name": "pod",
        "sandbox-namespace": "team",
    }
    found = {f"io.kubernetes.cri.{key}": value for key, value in {**names, **annotations}.items()}
    write_bundle(host / "run/containerd/io.containerd.runtime.v2.task/k8s.io/abc/config.json", cgroups_path, found)


def write_crio(host: Path, cgroups_path: str) -> None:
    names = {"container.name": "main", "pod.name": "pod", "pod.namespace": "team", "cri-o.ContainerType": "container"}
    found = {f"io.kubernetes.{key}": value for key, value in names.items()}
    path = host / "run/containers/storage/overlay-containers/abc/userdata/config.json"
    write_bundle(path, cgroups_path, found)


def write_bundle(path: Path, cgroups_path: str, annotations: dict[str, str]) -> None:
    path.parent.mkdir(parents=True)
    bundle = {
        "process": {"env": ["PATH=/bin", ENV]},
        "linux": {"cgroupsPath": cgroups_path, "resources": {"cpu": {"cpus": "2-3", "shares": 2}}},
        "annotations": annotations,
    }
    path.write_text(json.dumps(bundle))


SLICE = "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice"


@pytest.mark.parametrize(
    ("write", "path", "cgroup", "files"),
    [
        (
            write_containerd,
            "kubepods-besteffort-pod1.slice:cri-containerd:abc",
            f"{SLICE}/cri-containerd-abc.scope",
            {"cpuset.cpus.effective": "2-3", "../../../../cgroup.controllers": "cpuset"},
        ),
        (write_containerd, "/kubepods/pod1/abc", "cpuset/kubepods/pod1/abc", {"cpuset.effective_cpus": "2-3"}),
        (write_crio, "kubepods-besteffort-pod1.slice:crio:abc", f"cpuset/{SLICE}/crio-abc.scope", {}),
    ],
    ids=["containerd-systemd-v2", "containerd-cgroupfs-v1", "cri-o-systemd-v1"],
)
def test_containers_are_found_by_what_their_runtime_keeps_of_them(
    write: Callable[..., None], path: str, cgroup: str, files: dict[str, str], tmp_path: Path
) -> None:
    Machine(cores=8).write(tmp_path)
    write(tmp_path, path)
    directory = tmp_path / "sys/fs/cgroup" / cgroup
    directory.mkdir(parents=True)
    for name, text in {"cpuset.cpus": "0-7", "cpuset.mems": "0", **files}.items():
        (directory / name).write_text(f"{text}\n")
    (text,) = look(tmp_path)
    assert text.startswith(
        "container main of pod team/pod may run on CPU 0-7, and its claims give it 2-3: it was created"
    )
    (directory / "cpuset.cpus").write_text("2-3\n")
    assert look(tmp_path) == []


def test_sandboxes_and_containers_that_have_just_ended_are_left_out(tmp_path: Path) -> None:
    Machine(cores=8).write(tmp_path)
    write_containerd(tmp_path, "/gone")
    assert look(tmp_path) == []
    (tmp_path / "sys/fs/cgroup/cpuset/gone").mkdir(parents=True)
    assert len(look(tmp_path)) == 2, "nothing restricts it to CPUs, or to memory"
    bundle = tmp_path / "run/containerd/io.containerd.runtime.v2.task/k8s.io/abc/config.json"
    bundle.write_text(bundle.read_text().replace('"container"', '"sandbox"'))
    assert look(tmp_path) == []
    bundle.write_text("{")
    assert look(tmp_path) == []


def test_it_is_said_where_containers_cannot_be_seen(tmp_path: Path) -> None:
    with pytest.raises(NothingVisible, match="run it as root, in the agent's pod or on the node"):
        look(tmp_path)


def look(host: Path) -> list[str]:
    settings = Settings(host_root=str(host), sys_root=f"{host}/sys", proc_root=f"{host}/proc")
    return list(examine(settings, HELD))
