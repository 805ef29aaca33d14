"""What the pages of pydra-nvidia print is true: classes, scenarios, claims, messages."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import yaml

import pydra
import pydra_nvidia
import pydra_pci
from pydra_nvidia import DEVICE_CLASSES
from pydra_nvidia.cdi.hooks import PLACES
from pydra_nvidia.compute_domain.settings import Settings as ComputeDomainSettings
from pydra_nvidia.device_names import DRIVER
from pydra_nvidia.health.diagnosis import DEFAULT_REACTIONS
from pydra_nvidia.health.xid_catalogue import APPLICATION_XIDS
from pydra_nvidia.host.driver_root import ROOTS
from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.settings import Settings, Signal
from pydra_nvidia.simulation.scenario_file import bundled_models, bundled_scenarios, parse_scenario
from pydra_pci import Reaction
from tests.house.pages import ROOT, find_code, find_rows

HERE = Path(__file__).resolve().parents[1]
CODE = Path(pydra_nvidia.__file__).parent
PAGES = [HERE / "README.md", *sorted((HERE / "docs").glob("*.md"))]


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def rows(page: str, header: str) -> list[list[str]]:
    return find_rows(str((HERE / page).relative_to(ROOT)), header)


def test_the_classes_in_the_readme_are_those_of_the_backend() -> None:
    documents = [one for block in blocks(HERE / "README.md") for one in yaml.safe_load_all(block)]
    classes = {one["metadata"]["name"]: one["spec"] for one in documents if one.get("kind") == "DeviceClass"}
    assert classes == msgspec.to_builtins(DEVICE_CLASSES)


def test_the_readme_knows_all_scenarios_and_models() -> None:
    told = [name for cells in rows("README.md", "scenario") for name in find_code(cells[0])]
    assert sorted(told) == sorted(bundled_scenarios())
    text = (HERE / "README.md").read_text()
    assert [name for name in bundled_models() if f"`{name}`" not in text] == []


def test_the_scenario_in_the_readme_is_one() -> None:
    (block,) = (block for block in blocks(HERE / "README.md") if "\ngpus:" in block)
    assert parse_scenario(block.encode(), "README.md").gpus[0].count == 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_variables_in_the_pages_are_settings(page: Path) -> None:
    known = {field.name.upper() for field in msgspec.structs.fields(Settings)} | {"SCENARIO"}
    known |= {f"COMPUTE_DOMAIN_{field.name.upper()}" for field in msgspec.structs.fields(ComputeDomainSettings)}
    assert set(re.findall(r"\bPYDRA_NVIDIA_([A-Z_]+[A-Z])\b", page.read_text())) <= known


def test_the_page_of_health_has_every_signal_with_what_follows() -> None:
    told = {
        find_code(taint)[0].removeprefix(f"{DRIVER}/"): device == "Unhealthy"
        for what, _, device, taint in rows("docs/health.md", "signal")
        if "ignored" not in what
    }
    expected = {one.value: follows is Reaction.UNHEALTHY for one, follows in DEFAULT_REACTIONS.items()}
    assert told == {name: sick for name, sick in expected.items() if name != Signal.IGNORED_XID.value}
    ignored = re.search(r"applications cause \(([0-9, and]+)\)", (HERE / "docs/health.md").read_text())
    assert ignored is not None
    assert {int(one) for one in re.findall(r"\d+", ignored[1])} == APPLICATION_XIDS


@pytest.mark.parametrize(("before", "places"), [("this order:", PLACES), ("that has NVML:", ROOTS)])
def test_the_page_of_containers_lists_the_places_in_the_order_of_looking(before: str, places: tuple[str, ...]) -> None:
    told = (HERE / "docs/containers.md").read_text().partition(before)[2].lstrip().partition("\n\n")[0]
    assert tuple(find_code(line)[0] for line in told.splitlines()) == places


def read_code() -> str:
    """The code without comments, where the parts of each string are one."""
    own = (CODE, Path(pydra_pci.__file__).parent, Path(pydra.__file__).parent)
    text = "".join(file.read_text() for folder in own for file in folder.rglob("*.py"))
    return re.sub(r"""["']\s+[rf]*["']|#.*""", "", text).replace('\\"', '"')


def test_messages_in_the_page_of_troubles_are_in_the_code() -> None:
    known = read_code()
    missing = []
    cells_of_messages = [cells[0] for cells in rows("docs/troubleshooting.md", "message")]
    cells_of_messages += [cells[0].partition(":")[2] for cells in rows("docs/compute-domains.md", "Event on the claim")]
    for cell in cells_of_messages:
        for message in find_code(cell):
            if message.startswith("NVML_ERROR_"):
                assert message.removeprefix("NVML_ERROR_") in Code.__members__
                continue
            pieces = [piece.strip(" ,;:") for piece in message.split("...")]
            missing += [piece for piece in pieces if len(piece) > 2 and piece not in known]
    assert not missing, missing


def test_every_metric_is_on_a_page() -> None:
    source = "".join(path.read_text() for path in CODE.rglob("*.py"))
    names = set(re.findall(r"(?:_sample|_Query)\(\s*\"(\w+)\"", source))
    names |= set(re.findall(r"Sample\(\s*name=\"(\w+)\"", source))
    assert {"xids_total", "clock_hertz", "nvlink_links_up"} <= names
    text = "".join(page.read_text() for page in PAGES)
    assert [name for name in sorted(names) if not re.search(rf"`(pydra_nvidia_)?{name}`", text)] == []
