"""The page of monitoring knows every metric and every alert, and no other."""

from __future__ import annotations

import re

import yaml

from tests.house.pages import ROOT, find_code, find_rows, read

PAGE = "docs/monitor.md"
RULES = ROOT / "charts" / "pydra" / "files" / "alerts.yaml"


def test_every_metric_answers_a_question() -> None:
    reference = {name for cells in find_rows("docs/metrics.md", "series") for name in find_code(cells[0])}
    answers = {name for cells in find_rows(PAGE, "question") for name in find_code(cells[1])}
    assert len(reference) >= 20
    assert reference <= answers
    assert {name for name in answers - reference if not name.startswith("process_")} == set()


def test_every_alert_of_the_chart_is_reported_with_its_severity_and_no_other() -> None:
    rules = {rule["alert"]: rule for group in yaml.load(RULES.read_text(), yaml.CSafeLoader).values() for rule in group}
    told = {find_code(cells[0])[0]: cells for cells in find_rows(PAGE, "alert")}
    assert told.keys() == rules.keys()
    for name, cells in told.items():
        assert cells[1] == rules[name]["severity"], name
        assert ("kube_" in rules[name]["expr"]) == cells[0].endswith("*"), name
        if after := rules[name].get("for"):
            number, unit = after[:-1], {"m": "minute", "h": "hour"}[after[-1]]
            assert re.search(rf"\b({number}|an) {unit}s?\b", cells[2]), f"{name} fires after {after}"


def test_metrics_that_other_pages_name_exist() -> None:
    known = {name for cells in find_rows("docs/metrics.md", "series") for name in find_code(cells[0])}
    for page in ("docs/install.md", "docs/troubleshoot.md", "docs/upgrade.md", "docs/admission.md", "docs/security.md"):
        for name in re.findall(r"`(pydra_[a-z_]+)", read(page)):
            assert name in known or name.startswith("pydra_nvidia"), f"{page}: {name}"


def test_reasons_that_alerts_name_are_reasons_of_events() -> None:
    rules = [rule for group in yaml.load(RULES.read_text(), yaml.CSafeLoader).values() for rule in group]
    text = " ".join(f"{rule['expr']} {rule['summary']} {rule['description']}" for rule in rules)
    named = set(re.findall(r"\b(?:Backend|Claim|Driver|Checkpoint|Registration|Fields|Edit|Invalid)[A-Z]\w+", text))
    assert len(named) >= 8
    assert named - set(find_code(read("docs/events.md"))) == set()
