"""Where the interface of a step is, in any namespace. Blocks."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress

from pydra_net.kernel import Kernel, Namespace, NamespaceGone
from pydra_net.network_types import Link, Reading
from pydra_net.steps import GiveInterface, InterfaceStep


def find(step: InterfaceStep, reading: Reading) -> Link | None:
    """The interface of the step."""
    return next((link for link in reading.links if step.is_of(link)), None)


def locate(kernel: Kernel, gives: Sequence[GiveInterface], pods: Sequence[Namespace]) -> Mapping[str, Link]:
    """The interfaces that are in one of these namespaces, by the keys of their steps."""
    found: dict[str, Link] = {}
    for pod in pods:
        with suppress(NamespaceGone):
            reading = kernel.read_links(pod)
            found |= {give.key: link for give in gives if (link := find(give, reading))}
    return found


@contextmanager
def locating(kernel: Kernel, step: InterfaceStep, pods: Sequence[Namespace]) -> Iterator[tuple[Namespace, Link] | None]:
    """Yield where it is: in one of these, or in any other that can be seen."""
    with closing(list_places(kernel, pods)) as places:
        yield next(_find_in(kernel, step, places), None)


def _find_in(kernel: Kernel, step: InterfaceStep, places: Iterator[Namespace]) -> Iterator[tuple[Namespace, Link]]:
    for place in places:
        with suppress(NamespaceGone):
            if link := find(step, kernel.read_links(place)):
                yield place, link


def list_places(kernel: Kernel, pods: Sequence[Namespace]) -> Generator[Namespace]:
    """Yield these, and then all others that can be seen, each open until the next one or the end."""
    yield from pods
    for path in kernel.list_paths():
        with suppress(NamespaceGone), closing(kernel.open(path)) as other:
            yield other
