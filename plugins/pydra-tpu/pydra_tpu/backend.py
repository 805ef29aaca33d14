"""The coroutines that pydra calls: each reads the machine, decides, and answers.

Nothing is done to a TPU for a claim: what makes a sub-slice is the environment and the nodes of its containers. So
there is nothing to undo, and nothing to restore.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from pydra import Claim, HeldClaim, Inventory, PreparedDevice, Sample, held_claims
from pydra_pci import Tree
from pydra_tpu.cdi.edits import prepare_claim
from pydra_tpu.claim_config import TpuConfig
from pydra_tpu.devices import list_offered
from pydra_tpu.hardware_reader import read_host
from pydra_tpu.hardware_types import Host
from pydra_tpu.health import find_unclaimed_users
from pydra_tpu.host.processes import read_chip_users
from pydra_tpu.inventory import build_inventory
from pydra_tpu.libtpu.sdk_metrics import add_links, build_sdk_samples
from pydra_tpu.libtpu.sdk_monitor import SdkMonitor
from pydra_tpu.runtime_metrics.find_runtimes import ask_runtimes
from pydra_tpu.runtime_metrics.samples import HeldChips, build_samples
from pydra_tpu.settings import Offer, Settings
from pydra_tpu.slice_facts.metadata_server import MetadataServer

RUNTIME_DEADLINE = 2.0
"""Seconds for all answers of a workload's TPU runtime, which is on the same machine."""


class TpuBackend:
    """It remembers the last reading, by which claims are decided without a look at the machine.

    That a device node is still there is checked by the agent, for each claim.
    """

    def __init__(self, settings: Settings, tree: Tree, metadata: MetadataServer, monitor: SdkMonitor) -> None:
        self._settings = settings
        self._tree = tree
        self._metadata = metadata
        self._monitor = monitor
        self._seen: Host | None = None

    async def restore(self, held: Sequence[HeldClaim], /) -> None:
        """Do nothing. Only a backend with this method gets what the node holds, see `held_claims`."""

    async def discover(self) -> Inventory:
        """The whole host and its sub-slices, with their health."""
        self._seen = await self._read()
        return build_inventory(self._seen, self._settings.offer)

    async def wait_changed(self) -> None:
        """Return when a chip, its driver, node or users, or what is known of the slice, differ from `discover`."""
        while await self._read() == self._seen:
            await self._metadata.wait_changed(self._settings.poll_period)

    async def prepare(self, claim: Claim, /) -> list[PreparedDevice]:
        """The nodes and the environment for the claim's containers."""
        host = self._seen or await self._read()
        return prepare_claim(claim, host, list_offered(host, self._settings.offer), self._settings)

    async def unprepare(self, claim: Claim, prepared: Sequence[PreparedDevice], /) -> None:
        """Nothing was done."""

    async def measure(self) -> list[Sample]:
        """Memory and use of chips, while a workload's runtime serves them; links and throttling as last told."""
        answers = await ask_runtimes(self._settings.runtime_metrics_ports, RUNTIME_DEADLINE)
        host = self._seen
        if host is None:
            return []
        held = [
            HeldChips(chips=tuple(sorted(_find_chips(host, [claim]))), ports=_list_ports(claim))
            for claim in _list_held()
        ]
        return [*build_samples(answers, host, held), *build_sdk_samples(host.chips, self._monitor.metrics)]

    async def _read(self) -> Host:
        before = self._seen or Host()
        held = _list_held()
        host = await asyncio.to_thread(read_host, self._tree, self._settings, self._metadata.answers, before)
        users = await asyncio.to_thread(read_chip_users, self._tree, host.chips)
        # What was held when the look began, or is now: a claim may come or go meanwhile.
        claimed = _find_chips(host, (*held, *_list_held()))
        chips = add_links(host.chips, self._monitor.metrics)
        return replace(host, chips=find_unclaimed_users(chips, users, claimed, before))


def _list_held() -> list[Claim]:
    """The claims of the node: processes of their containers may have their chips open."""
    return [one.claim for one in held_claims()]


def _find_chips(host: Host, claims: Iterable[Claim]) -> set[int]:
    """The chips of these claims; one may hold a device of another offer, which the settings had before."""
    known = list_offered(host, Offer.SUB_SLICES)  # which has the devices of the other offers, too
    names = {device.device for claim in claims for device in claim.devices}
    return {chip for name in names if name in known for chip in known[name].chips}


def _list_ports(claim: Claim) -> tuple[int, ...]:
    """The metrics ports that the claim's config names for all its devices; none where one has no such config."""
    configs = [device.config(TpuConfig) for device in claim.devices if not device.admin_access]
    ports = [(config and config.metrics_ports) or () for config in configs]
    return tuple(sorted({port for some in ports for port in some})) if all(ports) else ()
