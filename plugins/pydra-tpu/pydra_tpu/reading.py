"""Reads the machine: one `Host` of all that the kernel and the sources tell."""

from __future__ import annotations

from collections.abc import Mapping

from pydra_tpu.hardware import Host
from pydra_tpu.host.pci import read_chips
from pydra_tpu.host.tree import Tree, read_text
from pydra_tpu.settings import Settings
from pydra_tpu.sources.merge import merge_facts
from pydra_tpu.sources.told import parse_attributes, parse_settings, parse_tpu_env


def read_host(tree: Tree, settings: Settings, answers: Mapping[str, str]) -> Host:
    """The machine as it is now. Reads files of the kernel, and tpu-env.

    `answers` are the attributes of the metadata server, as far as they are known.
    """
    chips, unknown = read_chips(tree)
    tpu_env = parse_tpu_env(read_text(tree.here(settings.tpu_env)), settings.tpu_env)
    facts, problems = merge_facts((parse_settings(settings), tpu_env, *parse_attributes(answers)), chips)
    return Host(
        chips=chips,
        facts=facts,
        uuid=read_text(f"{tree.sys}/class/dmi/id/product_uuid").lower(),
        problems=unknown + problems,
    )
