"""What the API server accepts of a pool: the slices to publish, and what to report as left out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import msgspec

from pydra.devices import Pool
from pydra.slices.build import WantedPool, build_wanted
from pydra.slices.reconciler_events import FieldsDropped
from pydra.slices.server_limitations import (
    ALLOCATABLE,
    OVERHEADS,
    ReducedPool,
    RefusedDevice,
    build_probe,
    has_overheads,
    reduce_pool,
)


class AcceptedPool(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What is to be published of `pool`, as far as it is known what the server lacks.

    `gates_off` are the feature gates whose fields it drops, `refused` the devices that it refuses, by name.
    """

    driver: str
    node: str
    pool: Pool
    gates_off: frozenset[str] = frozenset()
    refused: Mapping[str, RefusedDevice] = {}

    @cached_property
    def _reduced(self) -> ReducedPool:
        return reduce_pool(self.pool, self.gates_off, self.refused)

    @cached_property
    def wanted(self) -> WantedPool:
        """The slices."""
        return build_wanted(self._reduced.pool, driver=self.driver, node=self.node)

    @cached_property
    def probe(self) -> WantedPool | None:
        """The slices of a dry run that shows whether gates are off; None if the pool needs none."""
        probe = build_probe(self._reduced.pool)
        return build_wanted(probe, driver=self.driver, node=self.node) if probe.devices else None

    def describe_lack(self) -> FieldsDropped | None:
        """Return what to report about the server; None if it accepts all of the pool."""
        gates = tuple(sorted(gate for gate in self.gates_off if gate != OVERHEADS or self._loses_overheads()))
        refused = tuple(map(str, self.refused.values()))
        if not gates and not refused:
            return None
        # What is left out because it would be unsafe without its fields; what is refused has its own reason.
        withheld = tuple(name for name in self._reduced.withheld if name not in self.refused)
        return FieldsDropped(pool=self.pool.name, gates=gates, withheld=withheld, refused=refused)

    def _loses_overheads(self) -> bool:
        """Return whether the form of Kubernetes 1.36 is published, and says less than is known."""
        return ALLOCATABLE not in self.gates_off and has_overheads(self.pool)
