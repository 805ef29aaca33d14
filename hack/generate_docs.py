"""Writes the reference pages that follow from the code: docs/settings.md and docs/metrics.md.

`--check` writes nothing and ends with 1 when a page is stale; a test in tests/house calls `pages`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from pydra.cli.options import OPTIONS, default_text, flag_of, key_of, variable_of
from pydra.observe.metrics import Metrics
from pydra.settings import Settings

DOCS = Path(__file__).resolve().parent.parent / "docs"


def pages() -> dict[Path, str]:
    """The pages as they should be."""
    return {DOCS / "settings.md": settings_page(), DOCS / "metrics.md": metrics_page()}


def settings_page() -> str:
    fields = {field.name: field for field in msgspec.structs.fields(Settings)}
    lines = [
        "# Settings",
        "",
        "Each can be a flag of `pydra-agent`, a variable, or a key in the YAML file of `--config` (`PYDRA_CONFIG`).",
        "A flag beats a variable, a variable beats the file. All mistakes are told at once, and nothing starts.",
        "`SIGHUP` reads them again: the log settings take effect at once, the agent says which others need a restart.",
        "Variables such as `PYDRA_SIM_SCENARIO` belong to the backend named in them and reach its process as they are.",
    ]
    group = ""
    for option in OPTIONS:
        if option.group != group:
            group = option.group
            lines += [
                "",
                f"## {group[0].upper()}{group[1:]}",
                "",
                "| flag | variable | key | default | |",
                "|---|---|---|---|---|",
            ]
        default = default_text(fields[option.field]) or "–"
        names = f"`{flag_of(option)}` | `{variable_of(option)}` | `{key_of(option)}`"
        lines.append(f"| {names} | {default} | {option.help} |")
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    metrics = Metrics()
    lines = [
        "# Metrics",
        "",
        "Served at `/metrics`. All series of a backend exist from its start, at zero. Measurements of the hardware",
        "come from the backend and are called `pydra_<backend>_<name>`.",
        "",
        "| series | kind | labels | |",
        "|---|---|---|---|",
    ]
    for metric in sorted(vars(metrics).values(), key=lambda one: getattr(one, "_name", "")):
        if hasattr(metric, "_labelnames"):
            suffix = "_total" if metric._type == "counter" else ""
            labels = ", ".join(f"`{label}`" for label in metric._labelnames)
            lines.append(f"| `{metric._name}{suffix}` | {metric._type} | {labels} | {metric._documentation} |")
    return "\n".join(lines) + "\n"


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
