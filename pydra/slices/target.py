"""The slices that are wanted of a pool, on a server that may not accept all of it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pydra.devices import Pool
from pydra.slices.build import WantedPool, build_wanted
from pydra.slices.reconciler_events import FieldsDropped
from pydra.slices.server_limitations import (
    ALLOCATABLE,
    OVERHEADS,
    RefusedDevice,
    build_probe,
    has_overheads,
    reduce_pool,
)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be published of `pool`, as far as it is known what the server lacks.

    `gates_off` are the feature gates whose fields it drops, `refused` the devices that it refuses, by name. `wanted`
    are the slices, and `probe` those of a dry run that shows whether gates are off, None if the pool needs none.
    `withheld` are the devices that are left out because they would be unsafe without their fields.
    """

    driver: str
    node: str
    pool: Pool
    gates_off: frozenset[str]
    refused: Mapping[str, RefusedDevice]
    wanted: WantedPool
    probe: WantedPool | None
    withheld: tuple[str, ...]

    def change(
        self,
        *,
        pool: Pool | None = None,
        gates_off: frozenset[str] | None = None,
        refused: Mapping[str, RefusedDevice] | None = None,
    ) -> Target:
        """Return the target with another pool, or for a server that lacks something else."""
        return build_target(
            self.pool if pool is None else pool,
            driver=self.driver,
            node=self.node,
            gates_off=self.gates_off if gates_off is None else gates_off,
            refused=self.refused if refused is None else refused,
        )

    def describe_lack(self) -> FieldsDropped | None:
        """Return what to report about the server; None if it accepts all of the pool."""
        gates = tuple(sorted(gate for gate in self.gates_off if gate != OVERHEADS or self._loses_overheads()))
        refused = tuple(map(str, self.refused.values()))
        if not gates and not refused:
            return None
        return FieldsDropped(pool=self.wanted.name, gates=gates, withheld=self.withheld, refused=refused)

    def _loses_overheads(self) -> bool:
        """Return whether the form of Kubernetes 1.36 is published, and says less than is known."""
        return ALLOCATABLE not in self.gates_off and has_overheads(self.pool)


def build_target(
    pool: Pool,
    *,
    driver: str,
    node: str,
    gates_off: frozenset[str] = frozenset(),
    refused: Mapping[str, RefusedDevice] = {},
) -> Target:
    """Build the slices to publish of the pool."""
    reduced = reduce_pool(pool, gates_off, refused)
    probe = build_probe(reduced.pool)
    return Target(
        driver=driver,
        node=node,
        pool=pool,
        gates_off=gates_off,
        refused=refused,
        wanted=build_wanted(reduced.pool, driver=driver, node=node),
        probe=build_wanted(probe, driver=driver, node=node) if probe.devices else None,
        withheld=tuple(name for name in reduced.withheld if name not in refused),
    )
