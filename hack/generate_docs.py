"""Writes what follows from the code into the reference pages, and those of backends' settings.

In a page it is between `<!-- make docs -->` and `<!-- end -->`; what is around them is written by hand.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
from api_page import api_parts, texts_below

from pydra.admission.webhook import AdmissionMetrics
from pydra.backends.backend_settings import describe_settings
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
MADE = re.compile(r"(?<=<!-- make docs -->\n).*?(?=<!-- end -->\n)", re.DOTALL)


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
    filled: dict[str, Sequence[Iterable[str]]] = {
        "api.md": api_parts(),
        "commands.md": [command_tables("pydra", build_parser())],
        "conformance.md": [conformance_rules()],
        "settings.md": [option_tables(AGENT), option_tables(WEBHOOK)],
        "metrics.md": [series_table(Metrics()), series_table(AdmissionMetrics())],
    }
    made = {DOCS / name: fill((DOCS / name).read_text(), parts) for name, parts in filled.items()}
    return made | dict(backend_settings_page(*one) for one in own)


def fill(page: str, parts: Sequence[Iterable[str]]) -> str:
    """The page with these lines between its markers: as many parts as it has places for them."""
    before = MADE.split(page)
    lines = ["".join(f"{line}\n" for line in part) for part in parts]
    return before[0] + "".join(made + text for made, text in zip(lines, before[1:], strict=True))


def conformance_rules() -> Iterator[str]:
    yield from ("| rule | what holds | why |", "|---|---|---|")
    for rule in Rule:
        yield f"| `{rule.value}` | {rule.sentence.format('each configuration type')} | {rule.reason} |"
    yield from (
        "",
        f"`prepare`, `unprepare` and `restore` are interrupted wherever they wait (at most at {POINTS} places) and",
        "when they have ended. What `plan` changes is seen where Python makes it, not in a native library.",
    )


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
    told, empty = texts_below(kind), ("", "[]", "{}", "null")
    yield from ("| variable | allowed | default | |", "|---|---|---|---|")
    for name, one in zip(kind.__struct_fields__, describe_settings(kind(), "", prefix, {}, {}), strict=True):
        default = one.default.strip('"').removesuffix(".0")
        allowed = re.sub(
            r"(?<=that matches )\S+", r"`\g<0>`", one.allowed.replace("|", "\\|")
        )  # else brackets are links
        yield f"| `{one.variable}` | {allowed} | {'–' if default in empty else f'`{default}`'} | {told[name]} |"


if __name__ == "__main__":
    for page, content in pages().items():
        page.write_text(content)
