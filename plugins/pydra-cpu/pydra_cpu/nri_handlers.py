"""The container runtime's calls: containers get the CPUs that claims give them, or leave to them.

What a claim has is in the agent's records only. Nothing is remembered here but which containers there are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

import pydra_nri as nri
from pydra import HeldClaim
from pydra_cpu.cpu_list import format_cpu_list, parse_kernel_list
from pydra_cpu.devices import find_offered
from pydra_cpu.hardware_types import Topology
from pydra_cpu.pinning import Container, Pin, PinRefused, find_pins, list_variables

_CFS_PERIOD = 100_000
"""The kernel's default, in microseconds."""

_START_SECONDS = 240.0
"""How long a container can be starting: the kubelet waits 2 minutes for its creation and for its start."""

_log = logging.getLogger(__name__)


class ContainerHandlers:
    """The calls of one runtime, whose containers are `containers`, by id. `topology` has the CPUs that were last read.

    None is answered before `claims_known` is set; `held` returns the claims of the node. `read_allowed` reads the CPUs
    of a cgroup from the kernel; None if it cannot.
    """

    def __init__(
        self,
        topology: Topology,
        reserved: frozenset[int],
        held: Callable[[], Sequence[HeldClaim]],
        read_allowed: Callable[[str], frozenset[int] | None],
    ) -> None:
        self.topology = topology
        self.containers: dict[str, Container] = {}
        self.claims_known = asyncio.Event()
        self.held = held
        self._reserved = reserved
        self._read_allowed = read_allowed
        self._starting: dict[str, float] = {}
        """Containers that are being created or started, and until when (of the event loop's clock) this is believed."""
        self._unconfirmed: set[str] = set()
        """Containers that may have more CPUs than the runtime was told, until their cgroups show that they do not."""

    def build(self) -> nri.Handlers:
        """The handlers, for the connection to the runtime."""
        return nri.Handlers(
            synchronize=self.synchronize,
            keep=_keep,
            create_container=self.create_container,
            start_container=self.start_container,
            post_start_container=self.post_start_container,
            update_container=self.update_container,
            stop_container=self.stop_container,
            remove_container=self.remove_container,
        )

    def list_offered(self) -> frozenset[int]:
        """The CPUs that claims and other containers can have."""
        return find_offered(self.topology.online, self._reserved)

    async def synchronize(
        self, pods: Sequence[nri.PodSandbox], containers: Sequence[nri.Container]
    ) -> Sequence[nri.ContainerUpdate]:
        """Learn which containers there are, and correct those that have other CPUs than they should."""
        # Claims are not known before, and the runtime may be faster than the agent.
        await self.claims_known.wait()
        sandboxes = {pod.id: pod for pod in pods}
        # A runtime leaves out sandboxes whose state it does not know. Their containers run all the same.
        self.containers = {
            one.id: _read_container(sandboxes.get(one.pod_sandbox_id) or _read_labels(one), one) for one in containers
        }
        self._starting = {one.id: _find_start_limit() for one in containers if one.state == nri.CREATED}
        self._unconfirmed = set(self.containers)
        return _build_updates(self._correct(self._find_pins()))

    async def create_container(self, pod: nri.PodSandbox, container: nri.Container) -> nri.CreateContainerResponse:
        """Restrict a new container, and take from others what it gets. Raises PinRefused."""
        created = _read_container(pod, container)
        pins = self._find_pins(created)
        pin = pins[created.id]
        if isinstance(pin, PinRefused):
            raise pin
        if created.cpus and created.cpus != pin.cpus:
            text = format_cpu_list(created.cpus)
            _log.warning("something else restricts containers to CPUs, too: %s was to have %s", created, text)
        self.containers[created.id] = created
        wrong = self._correct(pins)
        self._starting[created.id] = _find_start_limit()
        own = wrong.pop(created.id, None)
        adjust = nri.ContainerAdjustment() if own is None else nri.ContainerAdjustment.of(_build_cpuset(own))
        return nri.CreateContainerResponse(adjust=adjust, update=_build_updates(wrong))

    async def start_container(self, _pod: nri.PodSandbox, container: nri.Container) -> None:
        """Refuse a container that the kernel gives CPUs of others: an update while it was made was lost.

        That happens if this process came or the runtime went on without it meanwhile. Raises PinRefused.
        """
        known, offered = self.containers.get(container.id), self.list_offered()
        pin = find_pins(self.containers.values(), self.held(), offered).get(container.id)
        allowed = self._read_allowed(known.cgroup) if known and known.cgroup else None
        if isinstance(pin, Pin) and allowed is not None and not (allowed or offered) & offered <= pin.cpus:
            raise PinRefused(
                f"{known} was made for CPU {format_cpu_list(allowed or offered)}, and has CPU "
                f"{format_cpu_list(pin.cpus)} now; the kubelet makes it again"
            )

    async def post_start_container(self, _pod: nri.PodSandbox, container: nri.Container) -> None:
        """From now on, updates reach the container. It has what was stored when it started."""
        self._starting.pop(container.id, None)
        if known := self.containers.get(container.id):
            stored = parse_kernel_list(container.linux.resources.cpu.cpus)
            self.containers[container.id] = known.with_cpus(stored)

    async def update_container(
        self, _pod: nri.PodSandbox, container: nri.Container, wanted: nri.LinuxResources
    ) -> Sequence[nri.ContainerUpdate]:
        """Keep the container's CPUs while the kubelet changes something else."""
        if wanted.cpu.quota is not None and (known := self.containers.get(container.id)):
            self.containers[container.id] = replace(known, limit=_read_limit(wanted.cpu))
        pins = self._find_pins()
        wrong = self._correct(pins)
        pin, known = pins.get(container.id), self.containers.get(container.id)
        if isinstance(pin, Pin) and known and (known.cpus or wanted.cpu.cpus):
            wrong[container.id] = pin
            self.containers[container.id] = known.with_cpus(pin.cpus)
        return _build_updates(wrong)

    async def stop_container(self, _pod: nri.PodSandbox, container: nri.Container) -> Sequence[nri.ContainerUpdate]:
        """Forget the container, and give its CPUs to others. Its claim has them again with its next container."""
        self._forget(container)
        return _build_updates(self._correct(self._find_pins()))

    async def remove_container(self, _pod: nri.PodSandbox, container: nri.Container) -> None:
        """Forget the container."""
        self._forget(container)

    def _forget(self, container: nri.Container) -> None:
        self.containers.pop(container.id, None)
        self._starting.pop(container.id, None)
        self._unconfirmed.discard(container.id)

    def _correct(self, pins: Mapping[str, Pin | PinRefused]) -> dict[str, Pin]:
        """Those of containers that have other CPUs than they should, which count as changed from now on.

        Those that are starting do not: the update may be lost, so the next event after their start repeats it.
        """
        wrong = {key: pin for key, pin in pins.items() if isinstance(pin, Pin) and self._differs(key, pin)}
        self._unconfirmed |= wrong.keys()
        reached = wrong.keys() - self._list_starting()
        self.containers |= {key: self.containers[key].with_cpus(wrong[key].cpus) for key in reached}
        return wrong

    def _differs(self, key: str, pin: Pin) -> bool:
        """Whether the container has other CPUs by the runtime, or more by the kernel: nobody says of a refused update.

        One that has fewer by the kernel is left alone: a cgroup above may not allow it more, and refuse each update.
        """
        container, online = self.containers[key], self.topology.online
        if pin.cpus != self._list_cpus(container):
            return True
        if key not in self._unconfirmed:
            return False
        allowed = self._read_allowed(container.cgroup) if container.cgroup else None
        if allowed is not None and not (allowed or online) & online <= pin.cpus:
            return True
        self._unconfirmed.discard(key)
        return False

    def _list_cpus(self, container: Container) -> frozenset[int]:
        """The container's CPUs. One without a claim that has all CPUs need not be restricted to them."""
        unrestricted = not container.cpus and not container.variables
        return self.topology.online if unrestricted else container.cpus

    def _find_pins(self, *created: Container) -> Mapping[str, Pin | PinRefused]:
        containers, starting = self.containers.values(), self._list_starting()
        return find_pins(containers, self.held(), self.list_offered(), *created, starting=starting)

    def _list_starting(self) -> frozenset[str]:
        now = asyncio.get_running_loop().time()
        return frozenset(key for key, until in self._starting.items() if now < until)


def _find_start_limit() -> float:
    return asyncio.get_running_loop().time() + _START_SECONDS


def _read_labels(container: nri.Container) -> nri.PodSandbox:
    """The container's pod, as the kubelet names it in its labels (pkg/kubelet/kuberuntime/labels.go)."""
    name, namespace = (container.labels.get(f"io.kubernetes.pod.{key}", "") for key in ("name", "namespace"))
    return nri.PodSandbox(name=name, namespace=namespace)


def _keep(container: nri.Container) -> nri.Container:
    """The container without what decides nothing here, and may be large."""
    return replace(container, env=list_variables(container.env), args=(), annotations={}, mounts=())


def _read_container(pod: nri.PodSandbox, container: nri.Container) -> Container:
    return Container(
        id=container.id,
        namespace=pod.namespace,
        pod=pod.name,
        name=container.name,
        env=list_variables(container.env),
        cdi_devices=tuple(one.name for one in container.cdi_devices),
        cpus=parse_kernel_list(container.linux.resources.cpu.cpus),
        cgroup=container.linux.cgroups_path,
        limit=_read_limit(container.linux.resources.cpu),
    )


def _read_limit(cpu: nri.LinuxCPU) -> float:
    """Quota and period are microseconds; a quota of -1 is none."""
    return max(0, cpu.quota or 0) / (cpu.period or _CFS_PERIOD)


def _build_updates(pins: Mapping[str, Pin]) -> tuple[nri.ContainerUpdate, ...]:
    return tuple(nri.ContainerUpdate.of(key, _build_cpuset(pin)) for key, pin in sorted(pins.items()))


def _build_cpuset(pin: Pin) -> nri.LinuxResources:
    return nri.cpuset(format_cpu_list(pin.cpus), format_cpu_list(pin.memory))
