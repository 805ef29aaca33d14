"""The dashboard asks for series that there are, by labels that they have."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.chart.rendering import CHART, SIM, at, render
from tests.chart.series import find_series

DASHBOARD = json.loads((CHART / "dashboards" / "pydra.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_every_series_that_is_asked_for_exists_with_those_labels() -> None:
    known = find_series()
    asked = set(re.findall(r"pydra_\w+", " ".join(EXPRESSIONS)))
    assert asked <= set(known)
    for expression in EXPRESSIONS:
        for name, matchers in re.findall(r"(pydra_\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)[=!]", matchers)) <= known[name], expression
        (labels,) = {name: known[name] for name in re.findall(r"pydra_\w+", expression)}.values()
        for grouped in re.findall(r"by \(([^)]*)\)", expression):
            assert set(re.split(r", *", grouped)) <= labels, expression


def test_every_series_is_shown() -> None:
    asked = {re.sub("_(bucket|count|sum)$", "", name) for name in re.findall(r"pydra_\w+", " ".join(EXPRESSIONS))}
    assert {re.sub("_(bucket|count|sum)$", "", name) for name in find_series()} == asked


def test_panels_lie_beside_each_other_and_say_what_they_show() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place: dict[str, Any] = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_configmap_has_the_dashboard_as_it_is() -> None:
    config = render(SIM, at("dashboard.create", True)).one("ConfigMap", "pydra-dashboard")
    assert json.loads(config["data"]["pydra.json"]) == DASHBOARD
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
