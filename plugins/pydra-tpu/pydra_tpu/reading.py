"""Reads the machine: one `Host` of all that the kernel and the sources tell."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from pydra_pci import Tree
from pydra_tpu.hardware import Chip, Host, Process
from pydra_tpu.host.pci import read_chips
from pydra_tpu.host.users import read_users
from pydra_tpu.settings import Settings
from pydra_tpu.sources.merge import merge_facts
from pydra_tpu.sources.told import parse_attributes, parse_settings, parse_tpu_env


def read_host(tree: Tree, settings: Settings, answers: Mapping[str, str], before: Host) -> Host:
    """The machine as it is now, with the chips that it had before. Reads files of the kernel, and tpu-env.

    `answers` are the attributes of the metadata server, as far as they are known.
    """
    found, unknown = read_chips(tree)
    chips = keep_places(before.chips, found)
    tpu_env = parse_tpu_env(tree.read(tree.here(settings.tpu_env)), settings.tpu_env)
    facts, problems = merge_facts((parse_settings(settings), tpu_env, *parse_attributes(answers)), chips)
    return Host(
        chips=chips,
        facts=facts,
        uuid=tree.read(tree.sys("class/dmi/id/product_uuid")).lower(),
        problems=unknown + problems,
    )


def keep_places(before: tuple[Chip, ...], found: tuple[Chip, ...]) -> tuple[Chip, ...]:
    """The chips that are there, and those that were: one that vanishes must not make its neighbours another mesh."""
    gone = {
        chip.address: replace(chip, driver="", node="", node_exists=False, present=False, links={}, throttle=0)
        for chip in before
    }
    known = gone | {chip.address: chip for chip in found}
    return tuple(replace(known[address], index=index) for index, address in enumerate(sorted(known)))


def read_chip_users(tree: Tree, chips: tuple[Chip, ...]) -> Mapping[int, tuple[Process, ...]]:
    """The processes that have each chip open, by its index."""
    nodes = {chip.node: chip.index for chip in chips if chip.node}
    return {nodes[node]: processes for node, processes in read_users(tree, nodes.keys()).items()}
