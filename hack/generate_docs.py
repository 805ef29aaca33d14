"""Writes the reference pages that follow from the code: docs/settings.md, docs/metrics.md, and backends' settings.

`--check` writes nothing and ends with 1 when a page is stale; a test in tests/house calls `pages`.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from pydra.admission.webhook import AdmissionMetrics
from pydra.backends.type_messages import describe
from pydra.cli.options import AGENT, WEBHOOK, OptionTable, default_text, flag_of, key_of, variable_of
from pydra.observability.metrics import Metrics
from pydra.testing.rules import Rule
from pydra_amd import settings as amd
from pydra_amd.health import diagnosis as amd_diagnosis
from pydra_nvidia import settings as nvidia
from pydra_nvidia.compute_domain import settings as compute_domain
from pydra_nvidia.health import diagnosis as nvidia_diagnosis
from pydra_tpu import settings as tpu

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
AMD_DOCS = ROOT / "plugins" / "pydra-amd" / "docs"
NVIDIA_DOCS = ROOT / "plugins" / "pydra-nvidia" / "docs"
TPU_DOCS = ROOT / "plugins" / "pydra-tpu" / "docs"


def pages() -> dict[Path, str]:
    """The pages as they should be."""
    return {
        DOCS / "conformance.md": conformance_page(),
        DOCS / "settings.md": settings_page(),
        DOCS / "metrics.md": metrics_page(),
        AMD_DOCS / "settings.md": amd_settings_page(),
        NVIDIA_DOCS / "settings.md": nvidia_settings_page(),
        TPU_DOCS / "settings.md": tpu_settings_page(),
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
        "The suite prepares the first healthy device that no claim holds. Where an agent has prepared claims with the",
        "same backend, one that implements `restore` is only loaded.",
    ]
    return "\n".join(lines) + "\n"


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
        "`backendSettings`; `pydra check BACKEND` lists them.",
        *option_tables(AGENT),
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


def nvidia_settings_page() -> str:
    lines = [
        "# Settings of pydra-nvidia",
        "",
        "Variables of the agent's process, or `backendSettings: {nvidia: {dynamicMig: true}}` in its settings file;",
        "the variable wins. A wrong or unknown one keeps the backend from starting; all faults are named at once, in",
        "the log, on `/readyz` and in an Event on the Node (`BackendSettings`). `pydra check nvidia` shows each one",
        "with its value and where that came from. The agent has [settings of its own](../../../docs/settings.md).",
        "",
        "With `PYDRA_NVIDIA_SCENARIO`, `PYDRA_NVIDIA_STATE` is the simulated machine's directory, and the scenario may",
        "bring other defaults. The simulation comes with `pip install pydra-nvidia`; images for nodes leave it out.",
        "",
        *backend_settings_table(nvidia.Settings, nvidia.PREFIX),
        *signals_tables(nvidia, nvidia_diagnosis.DEFAULT_REACTIONS),
        *compute_domain_settings(),
    ]
    return "\n".join(lines) + "\n"


def signals_tables(settings: Any, defaults: Mapping[Any, Any]) -> Iterator[str]:
    """What a backend watches for, with the reactions; `settings` is its module of settings."""
    signals, reactions = texts_below(settings.Signal), texts_below(settings.Reaction)
    yield from (
        "",
        "## Signals",
        "",
        "What can be wrong with a GPU, worst first, and what follows unless "
        f"`{settings.PREFIX}SIGNALS` says otherwise.",
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
    told = texts_below(compute_domain.Imex)
    yield from (
        "",
        "## Settings of `nvidia-compute-domain`",
        "",
        "`backendSettings: {nvidia-compute-domain: {imex: hostManaged}}` in the file.",
        "",
        *backend_settings_table(compute_domain.Settings, compute_domain.PREFIX),
        "",
        "| imex | |",
        "|---|---|",
        *(f"| `{one.value}` | {told[one.name]} |" for one in compute_domain.Imex),
    )


def amd_settings_page() -> str:
    told = texts_below(amd.Partitioning)
    lines = [
        *backend_settings_head("amd", "partitioning: compute", amd.PREFIX),
        *backend_settings_table(amd.Settings, amd.PREFIX),
        "",
        "| partitioning | |",
        "|---|---|",
        *(f"| `{one.value}` | {told[one.name]} |" for one in amd.Partitioning),
        *signals_tables(amd, amd_diagnosis.DEFAULT_REACTIONS),
    ]
    return "\n".join(lines) + "\n"


def tpu_settings_page() -> str:
    told = texts_below(tpu.Offer)
    lines = [
        *backend_settings_head("tpu", "offer: chips", tpu.PREFIX),
        *backend_settings_table(tpu.Settings, tpu.PREFIX),
        "",
        "| offer | |",
        "|---|---|",
        *(f"| `{one.value}` | {told[one.name]} |" for one in tpu.Offer),
    ]
    return "\n".join(lines) + "\n"


def backend_settings_head(name: str, example: str, prefix: str) -> Iterator[str]:
    """What is the same on the page of each backend that has a simulation and nothing else to say first."""
    yield from (
        f"# Settings of pydra-{name}",
        "",
        f"Variables of the agent's process, or `backendSettings: {{{name}: {{{example}}}}}` in its settings file; the",
        "variable wins. A wrong or unknown one keeps the backend from starting; all faults are named at once, in the",
        "log, on `/readyz` and in an Event on the Node (`BackendSettings`)."
        f" `pydra check {name}` shows each one with its",
        "value and where that came from. The agent has [settings of its own](../../../docs/settings.md).",
        "",
        f"With `{prefix}SCENARIO`, `{prefix}STATE` is the simulated machine's directory. The simulation comes with",
        f"`pip install pydra-{name}`; images for nodes leave it out.",
        "",
    )


def backend_settings_table(kind: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    """A row for each setting of a backend, with the text below its field."""
    defaults, told = kind(), texts_below(kind)
    yield from ("| variable | allowed | default | |", "|---|---|---|---|")
    for field in msgspec.structs.fields(kind):
        default = f"`{text}`" if (text := as_text(getattr(defaults, field.name))) else "–"
        allowed = describe(msgspec.inspect.type_info(field.type)).replace("|", "\\|")
        yield f"| `{prefix}{field.name.upper()}` | {allowed} | {default} | {told[field.name]} |"


def texts_below(kind: type) -> dict[str, str]:
    """The string that stands below each field, or member, of a class; each must have one."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    texts: dict[str, str] = {}
    for one, below in zip(tree.body, [*tree.body[1:], ast.Pass()], strict=True):
        name = _assigned(one)
        if not name:
            continue
        match below:
            case ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.split())
            case _:
                raise ValueError(f"{kind.__name__}.{name} has no text below it")
    return texts


def _assigned(statement: ast.stmt) -> str:
    """The name that the statement gives a value; empty when it gives none."""
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return name
    return ""


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


def main() -> int:
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path} is stale: make docs", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages()[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
