"""The import of a simulation, which images for nodes leave out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydra import PydraError


class SimulationMissing(PydraError):
    """A simulated machine is required, and the backend's simulation is not installed."""

    reason = "SimulationMissing"


@contextmanager
def needs_simulation(package: str) -> Iterator[None]:
    """Wrap the import of the `simulation` of this backend, such as `pydra_amd`. Raises SimulationMissing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not f"{error.name}.".startswith((f"{package}.simulation.", "pydra_pci.simulation.")):
            raise
        distribution = package.replace("_", "-")
        message = f"the simulation is not part of this image; the distribution {distribution} has it"
        raise SimulationMissing(message) from None
