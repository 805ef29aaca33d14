"""Where the interface of a step is, in any namespace. Blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from pydra_net.kernel import Kernel, Namespace, NamespaceGone
from pydra_net.network_types import Link, Reading
from pydra_net.steps import InterfaceStep


def find(step: InterfaceStep, reading: Reading) -> Link | None:
    """The interface of the step."""
    return next((link for link in reading.links if step.is_of(link)), None)


def is_in(kernel: Kernel, step: InterfaceStep, pod: Namespace) -> bool:
    """Whether the interface is there."""
    try:
        return find(step, kernel.read_links(pod)) is not None
    except NamespaceGone:
        return False


@contextmanager
def locating(kernel: Kernel, step: InterfaceStep, pods: Sequence[Namespace]) -> Iterator[tuple[Namespace, Link] | None]:
    """Yield where it is: in one of these, or in any other that can be seen."""
    with ExitStack() as stack:
        yield next(_locate(kernel, step, pods, stack), None)


def _locate(
    kernel: Kernel, step: InterfaceStep, pods: Sequence[Namespace], stack: ExitStack
) -> Iterator[tuple[Namespace, Link]]:
    for pod in pods:
        with suppress(NamespaceGone):
            if link := find(step, kernel.read_links(pod)):
                yield pod, link
    for path in kernel.list_paths():
        with suppress(NamespaceGone):
            other = kernel.open(path)
            stack.callback(other.close)
            if link := find(step, kernel.read_links(other)):
                yield other, link
