"""What `pydra doctor` says of containers: those without the CPUs that claims give them, or leave to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydra import HeldClaim
from pydra_cpu.claim_plan import list_taken
from pydra_cpu.container_reader import Running, read_containers
from pydra_cpu.cpu_list import format_cpu_list
from pydra_cpu.devices import find_offered
from pydra_cpu.hardware_reader import read_topology
from pydra_cpu.kubelet_policy import find_static_manager
from pydra_cpu.pinning import Pin, PinRefused, find_pins
from pydra_cpu.settings import Settings
from pydra_pci import Roots, Tree


def compare_containers(settings: Settings, held: Sequence[HeldClaim]) -> Iterator[str]:
    """Yield which containers of the node do not have the CPUs that claims give them. Raises PydraError."""
    if settings.scenario:
        return  # a simulated runtime has no containers
    tree = Tree(Roots(host=settings.host_root, sys=settings.sys_root, proc=settings.proc_root))
    running = read_containers(tree)
    online = read_topology(tree).online
    manager = find_static_manager(tree, settings.kubelet_root)
    offered = find_offered(online, settings.reserved)
    yield from find_differences(running, held, offered=offered, online=online, manager=manager)


def find_differences(
    running: Sequence[Running],
    held: Sequence[HeldClaim],
    *,
    offered: frozenset[int],
    online: frozenset[int],
    manager: str = "",
) -> Iterator[str]:
    """Yield a sentence for each container that differs; `manager` says which of the kubelet's own restricts them."""
    pins, taken = find_pins([one.container for one in running], held, offered), list_taken(held)
    for one in running:
        pin = pins[one.container.id]
        if isinstance(pin, PinRefused):
            yield str(pin)
        else:
            if not one.container.variables:  # it may have CPUs of claims only after the runtime's next event
                pin = Pin(cpus=pin.cpus - (taken - (one.container.cpus or online)))
            yield from _compare(one, pin, online, manager)


def _compare(one: Running, pin: Pin, online: frozenset[int], manager: str) -> Iterator[str]:
    whose = "its claims give it" if one.container.variables else "claims leave to it"
    found = one.container.cpus or online
    if found & online != pin.cpus & online:
        text = f"{one.container} may run on CPU {format_cpu_list(found)}, and {whose} {format_cpu_list(pin.cpus)}"
        yield f"{text}: {_explain(one, pin, manager)}"
    elif lost := pin.cpus - (one.effective or found):
        yield f"{one.container} cannot run on CPU {format_cpu_list(lost)}, which {whose}: {_explain_lost(lost, online)}"
    if pin.memory and one.memory != pin.memory:
        nodes = f"NUMA node {format_cpu_list(one.memory)}" if one.memory else "all NUMA nodes"
        yield (
            f"{one.container} has memory of {nodes}, and its claims give it that of {format_cpu_list(pin.memory)}: "
            "something else has changed it; delete the pod"
        )


def _explain(one: Running, pin: Pin, manager: str) -> str:
    if manager:
        return f"the kubelet has the {manager}"
    if one.created_with == pin.cpus:
        return "it was created with them, and something else has changed it since; delete the pod"
    if one.container.variables and not one.created_with:
        return (
            "it was created while the agent was not connected to the container runtime, and a connection corrects it; "
            "the agent's log says why there is none"
        )
    return (
        "the runtime has not carried out the last change, and its log says why; if the next start of a container does "
        "not repeat it, restart the agent"
    )


def _explain_lost(lost: frozenset[int], online: frozenset[int]) -> str:
    if off_line := lost - online:
        return f"CPU {format_cpu_list(off_line)} is off-line; bring it back, or delete the pod"
    return "a cgroup above, such as kubepods.slice, does not allow them; give it all CPUs"
