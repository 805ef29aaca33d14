"""The alerts ask for series that there are, by labels that they have, and say what to do."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from pydra import errors
from tests.chart.promql import find_mismatches
from tests.chart.rendering import CHART, COMPUTE_DOMAIN, SIM, Object, at, overlay, render
from tests.chart.series import find_series

FILE = CHART / "files" / "alerts.yaml"
CASES_FILE = CHART / "files" / "alerts-test.yaml"
CASES: list[Object] = yaml.load(CASES_FILE.read_text(), yaml.CSafeLoader)["tests"]
ON = overlay(
    COMPUTE_DOMAIN,
    SIM,
    at("alerts.create", True),
    at("computeDomainController.enabled", True),
    at("webhook.enabled", True),
)
DOMAINS = "compute-domain.nvidia.com"
PROMTOOL = shutil.which("promtool")

TARGET = {"namespace", "pod", "node"}
"""Labels that the Prometheus operator and the chart's monitor give to every series."""

KUBE_STATE = {
    "kube_daemonset_status_number_unavailable": {"namespace", "daemonset"},
    "kube_daemonset_status_desired_number_scheduled": {"namespace", "daemonset"},
    "kube_deployment_status_replicas_available": {"namespace", "deployment"},
}
"""Series of kube-state-metrics, by its docs."""


# Not made when this file is imported: each worker does that, and one of them has the tests.
@cache
def series() -> Mapping[str, set[str]]:
    """The labels of each series."""
    return {**{name: labels | TARGET for name, labels in find_series().items()}, **KUBE_STATE}


def rules(*values: Mapping[str, Any], **release: Any) -> list[Object]:
    """The alerts of a release."""
    groups = render(*(values or (ON,)), **release).one("PrometheusRule")["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def parts(expression: str) -> list[promql.Expr]:
    """All of its parts, outermost first; raises ValueError when it is no PromQL."""
    found: list[promql.Expr] = []
    promql.walk(promql.parse(expression), found.append)
    return found


def selectors(expression: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Name and matchers of each series that is asked for."""
    for part in parts(expression):
        if isinstance(part, promql.VectorSelector):
            yield str(part.name), {one.name: one.value for one in part.matchers.matchers}


def labels_of(part: promql.Expr) -> set[str]:
    """The labels of what an expression gives."""
    match part:
        case promql.AggregateExpr(modifier=modifier) if modifier is not None:
            return set(modifier.labels)
        case promql.BinaryExpr(lhs=left, rhs=right):
            return labels_of(left) or labels_of(right)
        case promql.ParenExpr(expr=inner):
            return labels_of(inner)
        case promql.Call(func=function, args=arguments):
            (inner,) = [one for one in arguments if not isinstance(one, promql.NumberLiteral)] or [None]
            return set() if inner is None else labels_of(inner) - ({"le"} if "quantile" in function.name else set())
        case promql.MatrixSelector(vector_selector=selector):
            return labels_of(selector)
        case promql.VectorSelector(name=name):
            return series()[str(name)]
    return set()


def test_every_series_that_is_asked_for_exists_with_those_labels() -> None:
    for rule in rules():
        asked = list(selectors(rule["expr"]))
        assert asked, rule
        for name, matchers in asked:
            assert set(matchers) <= series()[name], rule
            assert matchers["namespace"] == "pydra-system", "releases in other namespaces have alerts of their own"
            assert {"driver", "backend", "daemonset", "deployment", "pod"} & set(matchers), "so have others in this one"
            for label, served in (
                ("driver", (DOMAINS, "sim.pydra.dev")),
                ("backend", ("nvidia-compute-domain", "sim")),
            ):
                if label in series()[name]:
                    assert {*matchers[label].split("|")} <= {*served}, rule
        for part in parts(rule["expr"]):
            if isinstance(part, promql.AggregateExpr):
                assert part.modifier is not None
                (name, *_) = [name for name, _ in selectors(part.prettify())]
                assert set(part.modifier.labels) <= series()[name], rule


def test_it_says_what_is_wrong_and_what_to_do_by_labels_that_it_has() -> None:
    for rule in rules():
        annotations = rule["annotations"]
        assert set(annotations) == {"summary", "description"}, rule
        assert annotations["summary"].endswith("."), rule
        assert len(annotations["description"]) > 80, rule
        text = " ".join(annotations.values())
        assert re.findall(r"{{.*?}}", text) == re.findall(r"{{ \$(?:labels\.\w+|value(?: \| humanize\w*)?) }}", text)
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels_of(promql.parse(rule["expr"])), rule


def test_it_is_a_rule_as_the_operator_takes_it() -> None:
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, rule
        assert re.fullmatch("Pydra[A-Z][A-Za-z]+", rule["alert"])
        assert re.fullmatch("[0-9]+[mh]", rule.get("for", "1m")), rule
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_an_alert_fires_for_what_is_wrong_and_for_nothing_else(case: Object) -> None:
    found = [one for one in rules(namespace="pydra") if one["alert"] == case["name"].split()[0]]
    assert found
    assert list(find_mismatches(case, found)) == []


@pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool: tests/chart/promql.py evaluates the same cases")
def test_promtool_finds_the_same(tmp_path: Path) -> None:
    spec = render(ON, namespace="pydra").one("PrometheusRule")["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(spec))
    cases = shutil.copy(CASES_FILE, tmp_path)
    done = subprocess.run([str(PROMTOOL), "test", "rules", cases], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case_that_fires_it_and_one_that_does_not() -> None:
    fires: set[str] = set()
    does_not: set[str] = set()
    for case in CASES:
        alert = case["name"].split()[0]
        results = [check["exp_samples"] for check in case["promql_expr_test"]]
        fires |= {alert for result in results if result}
        does_not |= {alert for result in results if not result}
    assert fires == does_not == {rule["alert"] for rule in rules()}


def test_reasons_of_errors_in_the_expressions_are_reasons() -> None:
    reasons = {"ok"} | {
        one.reason for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.PydraError)
    }
    asked = {
        value
        for rule in rules()
        for _, matchers in selectors(rule["expr"])
        for label in ("result", "reason")
        for value in matchers.get(label, "ok").split("|")
    }
    assert asked <= reasons | {"failed", "malformed"}
    assert "DeviceInUse" in asked


def test_nothing_of_the_file_is_left_to_fill_in() -> None:
    for rule in rules():
        assert not re.search("NAMESPACE|DAEMONSET|DRIVER|BACKENDS|WEBHOOK|PODS|CONTROLLER", rule["expr"])
    expressions = {rule["alert"]: rule["expr"] for rule in rules()}
    assert 'daemonset=~"pydra-nvidia-compute-domain|pydra-sim"' in expressions["PydraAgentNotReady"]
    assert 'deployment=~"pydra-nvidia-compute-domain-webhook|pydra-sim-webhook"' in expressions["PydraWebhookDown"]
    absent = [rule["expr"] for rule in rules() if rule["alert"] == "PydraAgentsAbsent"]
    for expression, driver, daemon_set in zip(
        absent, (DOMAINS, "sim.pydra.dev"), ("pydra-nvidia-compute-domain", "pydra-sim"), strict=True
    ):
        assert f'driver="{driver}"' in expression
        assert f'daemonset=~"{daemon_set}"' in expression


def test_pods_with_a_long_name_are_found_by_what_kubernetes_leaves_of_it() -> None:
    backend = {
        "enabled": True,
        "driver": "fpga.example.com",
        "deviceClasses": {"classes": {}},
        "nodePools": {"label": "kind", "pools": {"trainin": {"values": ["a"]}, "big": {"values": ["b"]}}},
    }
    values = {"fullnameOverride": "r" * 32, "backends": {"b" * 20: backend}}
    on = at("alerts.create", True), at("webhook.enabled", True)
    objects = render(values, *on)
    wholes = {kind: [one["metadata"]["name"] for one in objects.all(kind)] for kind in ("DaemonSet", "Deployment")}
    assert {len(name) for name in wholes["DaemonSet"]} == {53, 57, 61}
    assert {len(name) for name in wholes["Deployment"]} == {61}
    pods = {
        "pydra_cluster_unsupported": [f"{name}-"[:58] + "x7k2p" for name in wholes["DaemonSet"]],
        "pydra_admission_reviews_total": [f"{name}-6bd8c9f7d5-"[:58] + "x7k2p" for name in wholes["Deployment"]],
    }
    for rule in rules(values, *on):
        for name, matchers in selectors(rule["expr"]):
            for pod in pods.get(name, ()):
                assert re.fullmatch(matchers["pod"], pod), rule


def test_every_alert_of_the_file_is_there_once_for_what_it_belongs_to() -> None:
    known: dict[str, list[Object]] = yaml.load(FILE.read_text(), yaml.CSafeLoader)
    names = [one["alert"] for part in known.values() for one in part]
    assert set(known) == {"agent", "driver", "webhook", "computeDomains"}
    assert len(names) == len(set(names))
    assert sorted(rule["alert"] for rule in rules()) == sorted([*names, *(one["alert"] for one in known["driver"])])


def test_without_a_webhook_nothing_is_asked_of_it() -> None:
    groups = render(SIM, at("alerts.create", True)).one("PrometheusRule")["spec"]["groups"]
    assert [one["name"].rpartition("pydra-system.")[2] for one in groups] == ["agent", "driver.sim.pydra.dev"]


def test_a_group_without_alerts_is_left_out() -> None:
    found = render(SIM, {"alerts": {"create": True, "disabled": ["PydraAgentsAbsent"]}}).one("PrometheusRule")
    assert [one["name"].rpartition(".")[2] for one in found["spec"]["groups"]] == ["agent"]


def test_groups_of_two_releases_have_two_names() -> None:
    first, second = (
        render(SIM, at("alerts.create", True), namespace=place).one("PrometheusRule")["spec"]["groups"]
        for place in ("here", "there")
    )
    assert not {one["name"] for one in first} & {one["name"] for one in second}


@pytest.mark.parametrize("wrong", ["sum by (a (b)", "rate(pydra_devices)", "pydra_devices{health=}"])
def test_the_parser_would_tell_of_an_expression_that_is_none(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parts(wrong)


def test_severities_stay_whatever_labels_are_added() -> None:
    values: dict[str, Any] = {"create": True, "ruleLabels": {"severity": "page", "team": "gpu"}}
    found = render(SIM, {"alerts": values}).one("PrometheusRule")["spec"]["groups"][0]["rules"][0]
    assert found["labels"] == {"severity": "warning", "team": "gpu"}
