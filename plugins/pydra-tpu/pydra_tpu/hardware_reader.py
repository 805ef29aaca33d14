"""Reads the machine: one `Host` of all that the kernel and the sources report."""

from __future__ import annotations

from collections.abc import Mapping

from pydra_pci import Tree
from pydra_tpu.hardware_types import Chip, Host, Process
from pydra_tpu.host.pci import read_functions
from pydra_tpu.host.processes import read_users
from pydra_tpu.pci_functions_to_chips import build_chips, keep_places
from pydra_tpu.settings import Settings
from pydra_tpu.slice_facts.merge import merge_facts
from pydra_tpu.slice_facts.parse import parse_attributes, parse_settings, parse_tpu_env


def read_host(tree: Tree, settings: Settings, answers: Mapping[str, str], before: Host) -> Host:
    """The machine as it is now, with the chips that it had before. Reads files of the kernel, and tpu-env.

    `answers` are the attributes of the metadata server, as far as they are known.
    """
    found, unknown = read_functions(tree)
    known = [function for chip in before.chips for function in chip.functions]
    chips = build_chips(keep_places(known, found))
    tpu_env = parse_tpu_env(tree.read(tree.here(settings.tpu_env)), settings.tpu_env)
    facts, problems = merge_facts((parse_settings(settings), tpu_env, *parse_attributes(answers)), chips)
    return Host(
        chips=chips,
        facts=facts,
        uuid=tree.read(tree.sys("class/dmi/id/product_uuid")).lower(),
        problems=unknown + problems,
    )


def read_chip_users(tree: Tree, chips: tuple[Chip, ...]) -> Mapping[int, tuple[Process, ...]]:
    """The processes that have each chip open, by its index."""
    users = read_users(tree, {node for chip in chips for node in chip.nodes})
    found = {chip.index: {one.pid: one for node in chip.nodes for one in users.get(node, ())} for chip in chips}
    return {index: tuple(by_pid[pid] for pid in sorted(by_pid)) for index, by_pid in found.items()}
