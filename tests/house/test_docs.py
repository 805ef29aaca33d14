"""The reference pages say what the code does, and what the pages print works."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from pydra import ClaimError
from pydra.backends import contract
from pydra.backends.claim_config import find_config_problems
from pydra.backends.discovery import list_backends
from pydra.checkpoint.record import SCHEMA
from pydra.cli.tool import build_parser
from tests.house.pages import FOLLOWED, PAGES, ROOT, find_code, find_rows, find_yaml, read
from tests.house.scripts import load


def test_the_reference_pages_follow_from_the_code() -> None:
    for path, text in load(ROOT / "hack" / "generate_docs.py").pages().items():
        assert path.read_text() == text, f"{path.name} is stale: make docs"


def test_commands_in_the_pages_exist() -> None:
    known = set(re.findall(r"^    (\w+)\b", build_parser().format_help(), flags=re.MULTILINE))
    assert {"dev", "check", "backends"} <= known
    for page in PAGES:
        for command in re.findall(r"^ +pydra ([a-z]+)", read(page), flags=re.MULTILINE):
            assert command in known, f"{page}: pydra {command}"


def test_tests_that_the_pages_name_exist() -> None:
    files = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("plugins/*/tests/**/*.py")]
    known = {name for file in files for name in re.findall(r"\bdef (test_\w+)\(", file.read_text())}
    named = {(page, name) for page in PAGES for name in re.findall(r"`(test_\w+)`", read(page))}
    assert len(named) > 20
    assert {(page, name) for page, name in named if name not in known} == set()


def test_the_design_names_every_module_of_the_core() -> None:
    core = ROOT / "pydra"
    table = read("docs/design.md").partition("## Life of a claim")[0]
    rows = re.findall(r"^\| (`[^|]+`) \| (.*) \|$", table, flags=re.MULTILINE)
    packages = {path.parent.name for path in core.glob("*/__init__.py")}
    listed = {
        head.strip("`"): set(re.findall(r"`([a-z_0-9]+)`", text)) for head, text in rows if head.strip("`") in packages
    }
    assert listed.keys() == packages
    for package, names in listed.items():
        modules = {path.stem for path in (core / package).glob("*.py")} - {"__init__"}
        names.discard("pydra")  # the command
        assert modules <= names, f"docs/design.md, {package}: {sorted(modules - names)} are not in the table"
        missing = {name for name in names - modules if not (core / package / name).is_dir()}
        assert missing == set(), f"docs/design.md, {package}: there is no module {sorted(missing)}"
    shared = set(re.findall(r"`([a-z_0-9]+)`", next(head for head, _ in rows if "`devices`" in head)))
    assert {path.stem for path in core.glob("*.py")} - {"__init__", "__main__"} == shared


def test_yaml_in_the_pages_parses_and_its_opaque_configs_decode() -> None:
    types = load_config_types()
    for page in set(PAGES) - set(FOLLOWED):
        for document in find_yaml(page):
            for driver, parameters in opaque_configs(document):
                assert driver in types, f"{page}: no backend's driver is {driver}"
                assert find_config_problems(parameters, types[driver]) == (), page


def opaque_configs(value: Any) -> Iterator[tuple[str, Any]]:
    """Driver and parameters of every opaque config below."""
    if isinstance(value, dict):
        if isinstance(opaque := value.get("opaque"), dict):
            yield opaque["driver"], opaque["parameters"]
        value = list(value.values())
    for one in value if isinstance(value, list) else ():
        yield from opaque_configs(one)


def load_config_types() -> dict[str, Any]:
    """By driver name, of all installed backends."""
    found = {}
    for entry in list_backends():
        module = importlib.import_module(entry.target.partition(":")[0])
        found[module.DRIVER] = module.CONFIG_TYPES
    return found


def test_the_readme_shows_the_minimal_example_of_25_lines() -> None:
    source = (ROOT / "examples" / "minimal" / "my_fpga.py").read_text()
    assert f"```python\n{source}```" in read("README.md")
    assert len([line for line in source.splitlines() if line.strip() and not line.strip().startswith('"""')]) <= 25


def test_the_page_on_upgrades_names_the_schema_of_records() -> None:
    assert f"in all versions so far: {SCHEMA} for claims with" in read("docs/upgrade.md")


def test_the_backend_contract_has_every_coroutine_with_its_parameters() -> None:
    members = [member for _, one in inspect.getmembers(contract, inspect.isclass) for member in vars(one).values()]
    coroutines = filter(inspect.iscoroutinefunction, members)
    expected = {f"{one.__name__}({', '.join(list(inspect.signature(one).parameters)[1:])})" for one in coroutines}
    assert {find_code(first)[0] for first, *_ in find_rows("docs/backend.md", "coroutine")} == expected


def test_the_errors_in_the_backend_contract_can_be_raised() -> None:
    names: dict[str, object] = {"__name__": "page"}
    for source in re.findall(r"```python\n(.*?)```", read("docs/backend.md"), flags=re.DOTALL):
        with pytest.raises(ClaimError):
            exec(compile(source, "docs/backend.md", "exec"), names)
