"""Writes the reference pages that follow from the code, those of backends' settings among them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
from api_page import api_page, texts_below

from pydra.admission.webhook import AdmissionMetrics
from pydra.backends.json_validation import describe
from pydra.cli.options import AGENT, WEBHOOK, OptionTable, default_text, flag_of, key_of, variable_of
from pydra.cli.tool import build_parser
from pydra.observability.metrics import Metrics
from pydra.testing.interruptions import POINTS
from pydra.testing.rules import Rule
from pydra_amd import settings as amd
from pydra_amd.health import diagnosis as amd_diagnosis
from pydra_cpu import health as cpu_health
from pydra_cpu import settings as cpu
from pydra_net import settings as net
from pydra_nvidia import settings as nvidia
from pydra_nvidia.compute_domain import settings as compute_domain
from pydra_nvidia.health import diagnosis as nvidia_diagnosis
from pydra_tpu import settings as tpu

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def pages() -> dict[Path, str]:
    """The pages as they should be."""
    more = ", and the scenario may have other defaults."
    of_nvidia = (*signals_tables(nvidia, nvidia_diagnosis.DEFAULT_REACTIONS), *compute_domain_settings())
    own = (
        (amd, "partitioning: compute", "partitioning", signals_tables(amd, amd_diagnosis.DEFAULT_REACTIONS), "."),
        (nvidia, "dynamicMig: true", "", of_nvidia, more),
        (cpu, "groupBy: socket", "group_by", signals_tables(cpu, cpu_health.DEFAULT_REACTIONS, "CPUs"), "."),
        (net, "exclude: docker*", "", (), "."),
        (tpu, "offer: chips", "offer", (), "."),
    )
    return {
        DOCS / "api.md": api_page(),
        DOCS / "commands.md": commands_page(),
        DOCS / "conformance.md": conformance_page(),
        DOCS / "settings.md": settings_page(),
        DOCS / "metrics.md": metrics_page(),
        **dict(backend_settings_page(*one) for one in own),
    }


def conformance_page() -> str:
    lines = [
        "# Conformance rules",
        "",
        "What the conformance suite holds a backend to. It runs the backend in a process of its own, as the agent",
        "does, and reports everything that is wrong at once. There are three ways to run it:",
        "",
        "- `pydra check NAME` prints each check as it is made; `-o json` prints the report as one document.",
        "- `pytest --pydra-backend NAME` runs each rule as a test (pip installs the plugin with pydra).",
        "- `pydra.testing.check_backend(NAME)` returns a `Report`, for a test of your own.",
        "",
        "| rule | what holds | why |",
        "|---|---|---|",
        *(f"| `{rule.value}` | {rule.sentence.format('each configuration type')} | {rule.reason} |" for rule in Rule),
        "",
        f"`prepare`, `unprepare` and `restore` are interrupted wherever they wait (at most at {POINTS} places) and",
        "when they have ended. What `plan` changes is seen where Python makes it, not in a native library.",
        "",
        "The suite prepares the first healthy device that no claim holds, or the one that `--device` names; it lists",
        "devices of other kinds, such as partitions. Where an agent has prepared claims with the same backend, one",
        "that implements `restore` is only loaded, one with `plan` is only read, and with others no device is prepared",
        "that those claims have, or that shares counters with theirs.",
    ]
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    lines = [
        "# Commands",
        "",
        "`pydra-agent` runs on nodes; its flags are its [settings](settings.md). `pydra` is for people; its commands",
        "are below. Defaults are in brackets. `pydra --debug` shows the traceback of an internal error. Exit codes:",
        "0 if nothing is wrong, 1 if something is wrong, and 2 for invalid arguments.",
        *command_tables("pydra", build_parser()),
    ]
    return "\n".join(lines) + "\n"


def command_tables(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """The parts about the commands of a parser, and about theirs."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {one.dest: one.help for one in action._choices_actions}
            for word, below in action.choices.items():
                yield from ("", f"## `{name} {word}`", "", f"{sentence(str(below.description or told[word]))}")
                yield from command_table(below)
                yield from command_tables(f"{name} {word}", below)


def command_table(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The arguments of one command; flags that are settings have a page of their own."""
    settings = {flag_of(option) for table in (AGENT, WEBHOOK) for option in table.options}
    actions = [one for one in parser._actions if not isinstance(one, argparse._HelpAction | argparse._SubParsersAction)]
    shared = [one for one in actions if len(settings.intersection(one.option_strings)) == 1]
    # A backend or a driver is asked for by commands that have no other setting.
    own = actions if len(shared) < 3 else [one for one in actions if one not in shared]
    if own:
        yield from ("", "| argument | |", "|---|---|")
    for one in own:
        flags = ", ".join(f"`{flag} {one.metavar}`" if one.metavar else f"`{flag}`" for flag in one.option_strings)
        yield f"| {flags or f'`{one.metavar or one.dest}`'} | {sentence(one.help or '')} |"
    if len(own) < len(actions):
        yield from ("", "The other flags are [settings](settings.md).")


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    return f"{text[0].upper()}{text[1:].removesuffix('.')}."


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        "Settings of `pydra-agent`. Each can be a flag, an environment variable, or a key in the YAML file of",
        "`--config` (`PYDRA_CONFIG`); flags take precedence over variables, and variables over the file. If one is",
        "invalid, the agent reports all errors and does not start. `SIGHUP` reloads them: the log settings take effect",
        "at once, and the log says which others need a restart.",
        "",
        "A backend has its own settings, from variables named `PYDRA_<BACKEND>_...` and from the key",
        "`backendSettings`; `pydra check BACKEND` lists them. The key `backendProcesses` gives its process",
        "[a user, a seccomp profile and limits](security.md#the-backends-process).",
        *option_tables(AGENT),
        "",
        "## NUMA nodes",
        "",
        "With `numaNodeLists`, the attribute `resource.kubernetes.io/numaNode` of every device is a list: its own NUMA",
        "node, then the nearest ones of the same socket, as drivers in Go publish it for the feature gate",
        "DRAListTypeAttributes. `matchAttribute` then also accepts devices of neighbouring nodes. This needs the",
        "scheduler of Kubernetes 1.37: that of 1.36 compares no lists, and `matchAttribute` for `numaNode` finds no",
        "device. With the gate on, selectors say `numaNode.includes(1)`, which also accepts a number; `numaNode == 1`",
        "fails for a list. With the gate off in the API server, the number is published.",
        "",
        "## Overheads",
        "",
        "The key `backendOverheads` says what a pod with a device needs of the node's own resources besides, such as",
        "memory that is pinned for it.",
        "",
        "```yaml",
        "backendOverheads:",
        "  tpu:",
        "    memory: {perPod: 256Mi, perContainer: 64Mi}",
        "    cpu: {perPod: 500m}",
        "```",
        "",
        "The scheduler counts it for each device of a pod's claims, and the kubelet adds it to the limits of the pod's",
        "cgroups. Both need Kubernetes 1.37 and the feature gate DRANodeAllocatableResources (KEP-5517); without them,",
        "it is left out, and an Event says so. It applies to all devices of the backend, in the chart as",
        "`backends.NAME.overheads`.",
        "",
        "# Settings of the webhook",
        "",
        "`pydra webhook` has its own flags, variables and file (`--config`, `PYDRA_WEBHOOK_CONFIG`), with the same",
        "rules. [Admission](admission.md) explains what it does.",
        *option_tables(WEBHOOK),
    ]
    return "\n".join(lines) + "\n"


def option_tables(table: OptionTable) -> Iterator[str]:
    fields = {field.name: field for field in msgspec.structs.fields(table.settings)}
    group = ""
    for option in table.options:
        if option.group != group:
            group = option.group
            yield from ("", f"## {group[0].upper()}{group[1:]}", "")
            yield from ("| flag | variable | key | default | |", "|---|---|---|---|---|")
        default = default_text(fields[option.field]) or "–"
        names = f"`{flag_of(option)}` | `{variable_of(option, table)}` | `{key_of(option, table)}`"
        yield f"| {names} | {default} | {option.help} |"


def metrics_page() -> str:
    lines = [
        "# Metrics",
        "",
        "Served at `/metrics`. The series of a driver exist from its start, at zero. Backends add measurements of",
        "their hardware, named `pydra_<backend>_<name>`.",
        "",
        *series_table(Metrics()),
        "",
        "# Metrics of the webhook",
        "",
        "Served by `pydra webhook` at `/metrics`, on its own port and at `--http-address`.",
        "",
        *series_table(AdmissionMetrics()),
    ]
    return "\n".join(lines) + "\n"


def series_table(metrics: object) -> Iterator[str]:
    yield from ("| series | kind | labels | |", "|---|---|---|---|")
    for metric in sorted(vars(metrics).values(), key=lambda one: getattr(one, "_name", "")):
        if hasattr(metric, "_labelnames"):
            suffix = "_total" if metric._type == "counter" else ""
            labels = ", ".join(f"`{label}`" for label in metric._labelnames)
            yield f"| `{metric._name}{suffix}` | {metric._type} | {labels} | {metric._documentation} |"


def backend_settings_page(
    settings: Any, example: str, choice: str, signals: Iterable[str], more: str
) -> tuple[Path, str]:
    """The page of a backend's settings; `settings` is their module, which has the values of `choice` as an Enum."""
    name = settings.PREFIX.removeprefix("PYDRA_").strip("_").lower()
    values = getattr(settings, choice.title().replace("_", ""), None)
    lines = [
        f"# Settings of pydra-{name}",
        "",
        f"Variables of the agent's process, or `backendSettings: {{{name}: {{{example}}}}}` in its settings file;",
        "variables take precedence. If one is invalid or unknown, the backend does not start, and all errors are",
        "reported at once, in the log, on `/readyz` and in an Event on the Node (`BackendSettings`)."
        " To see each setting",
        f"with its value and its source, run `pydra check {name}`. The agent has",
        "[its own settings](../../../docs/settings.md).",
        "",
        f"With `{settings.PREFIX}SCENARIO`, `{settings.PREFIX}STATE` is the simulated machine's directory{more}",
        f"The simulation comes with the distribution pydra-{name}; images for nodes leave it out.",
        "",
        *backend_settings_table(settings.Settings, settings.PREFIX),
        *(choices_table(choice, values) if values else ()),
        *signals,
    ]
    return ROOT / "plugins" / f"pydra-{name}" / "docs" / "settings.md", "\n".join(lines) + "\n"


def choices_table(name: str, choices: type[Enum]) -> Iterator[str]:
    """What the values of a setting mean."""
    told = texts_below(choices)
    yield from ("", f"| {name} | |", "|---|---|", *(f"| `{one.value}` | {told[one.name]} |" for one in choices))


def signals_tables(settings: Any, defaults: Mapping[Any, Any], of: str = "a GPU") -> Iterator[str]:
    """What a backend watches for, with the reactions; `settings` is its module of settings."""
    signals, reactions = texts_below(settings.Signal), texts_below(settings.Reaction)
    yield from (
        "",
        "## Signals",
        "",
        f"Problems of {of}, the most severe first, and the reaction to each unless "
        f"`{settings.PREFIX}SIGNALS` changes it.",
        "",
        "| signal | default | |",
        "|---|---|---|",
        *(f"| `{one.value}` | `{defaults[one].value}` | {signals[one.name]} |" for one in defaults),
        "",
        "| reaction | |",
        "|---|---|",
        *(f"| `{one.value}` | {reactions[one.name]} |" for one in settings.Reaction),
    )


def compute_domain_settings() -> Iterator[str]:
    """The part of the page about the distribution's other backend."""
    yield from (
        "",
        "## Settings of `nvidia-compute-domain`",
        "",
        "`backendSettings: {nvidia-compute-domain: {imex: hostManaged}}` in the file.",
        "",
        *backend_settings_table(compute_domain.Settings, compute_domain.PREFIX),
        *choices_table("imex", compute_domain.Imex),
    )


def backend_settings_table(kind: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    """A row for each setting of a backend, with the text below its field."""
    defaults, told = kind(), texts_below(kind)
    yield from ("| variable | allowed | default | |", "|---|---|---|---|")
    for field in msgspec.structs.fields(kind):
        default = f"`{text}`" if (text := as_text(getattr(defaults, field.name))) else "–"
        allowed = describe(msgspec.inspect.type_info(field.type)).replace("|", "\\|")
        allowed = re.sub(r"(?<=that matches )\S+", r"`\g<0>`", allowed)  # brackets would be links
        yield f"| `{prefix}{field.name.upper()}` | {allowed} | {default} | {told[field.name]} |"


def as_text(value: Any) -> str:
    """A default as an admin would write it; empty for nothing."""
    match value:
        case bool():
            return str(value).lower()
        case Enum():
            return str(value.value)
        case int() | float():
            return f"{value:g}"
        case str():
            return value
    if value in ((), {}, None):
        return ""
    if isinstance(value, tuple):
        return ",".join(map(as_text, value))
    raise ValueError(f"no text for the default {value!r}")


if __name__ == "__main__":
    for page, content in pages().items():
        page.write_text(content)
