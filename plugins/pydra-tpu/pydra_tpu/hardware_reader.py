"""Reads the machine: one `Host` of all that the kernel and the sources report."""

from __future__ import annotations

from collections.abc import Mapping

from pydra_pci import Tree
from pydra_tpu.hardware_types import Host
from pydra_tpu.host.pci import read_functions
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
