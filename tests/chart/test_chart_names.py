"""Names that admins choose: numbers and truth to YAML, or with what a Service may not have."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import pytest

from tests.chart.effects import CA
from tests.chart.rendering import BOTH, CHART, COMPUTE_DOMAIN, NAMESPACE, SIM, Objects, at, overlay, parse, render

TEXTS = {"name", "namespace", "secretName", "serviceAccountName", "priorityClassName", "policyName", "path", "image"}
MAPS_OF_TEXTS = {"labels", "matchLabels", "annotations"}
NO_SERVICE = overlay(
    BOTH,
    {
        "networkPolicy": {"create": True, "from": [{"podSelector": {}}]},
        "configPolicy": {"create": True},
        "dashboard": {"create": True},
        "monitor": {"create": True},
        "alerts": {"create": True},
        "openshift": {"enabled": True},
        "packages": {"names": ["a"]},
    },
)


def no_texts(part: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where something else than a text is that Kubernetes has as one."""
    entries = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in entries:
        texts = value.values() if key in MAPS_OF_TEXTS else [value] if key in TEXTS else []
        if any(not isinstance(one, str) for one in texts):
            yield (*path, str(key))
        yield from no_texts(value, (*path, str(key)))


@pytest.mark.parametrize(
    ("name", "namespace", "values"),
    [
        pytest.param("123", "2024", NO_SERVICE, id="digits"),
        pytest.param("1e3", "1e3", NO_SERVICE, id="a number with an exponent"),
        pytest.param("true", "null", overlay(NO_SERVICE, {"webhook": {"enabled": True}}), id="words of YAML"),
        pytest.param(
            "a",
            "b",
            overlay(
                BOTH,
                {
                    "nameOverride": "1234",
                    "namespaceOverride": "2024",
                    "priorityClassName": "1",
                    "serviceAccount": {"name": "123"},
                    "webhook": {"enabled": True, "priorityClassName": "2"},
                },
                at("webhook.tls", {"mode": "secret", "secretName": "123", "caBundle": CA}),
                at("backends.sim.driver", "123"),
            ),
            id="values",
        ),
    ],
)
def test_a_name_stays_a_text_whatever_yaml_would_read(name: str, namespace: str, values: Mapping[str, Any]) -> None:
    objects = render(values, name=name, namespace=namespace)
    assert [(one["kind"], *path) for one in objects for path in no_texts(one)] == []
    labels = objects.one("DaemonSet", f"{name}-{values.get('nameOverride', 'pydra')}-sim")["metadata"]["labels"]
    assert labels["app.kubernetes.io/instance"] == name


def test_a_chart_of_another_revision_has_valid_labels_and_replaces_no_pod(tmp_path: Path) -> None:
    values = overlay(BOTH, COMPUTE_DOMAIN, at("computeDomainController.enabled", True), at("webhook.enabled", True))
    values = overlay(values, at("webhook.tls", {"mode": "secret", "secretName": "mine", "caBundle": CA}))
    about = Path(shutil.copytree(CHART, tmp_path / "pydra"), "Chart.yaml")
    # As Flux calls the chart of a commit in a git repository.
    about.write_text(about.read_text().replace("\nversion: 0.1.0\n", "\nversion: 0.1.0+9f2c41d0a7be\n"))
    files = helm_python.Chart.load(about.parent).render(values, name="pydra", namespace=NAMESPACE)
    found = Objects(one for path, text in files.items() if path.endswith(".yaml") for one in parse(text))
    labels = {one["metadata"].get("labels", {}).get("helm.sh/chart") for one in found} - {None}
    assert labels == {"pydra-0.1.0_9f2c41d0a7be"}
    assert _pods(found) == _pods(render(values))


def _pods(objects: Objects) -> list[Any]:
    return [one["spec"]["template"] for kind in ("DaemonSet", "Deployment") for one in objects.all(kind)]


def test_dots_of_a_release_are_no_part_of_names_that_become_host_names() -> None:
    objects = render(SIM, at("webhook.enabled", True), name="my.release")
    assert objects.one("Service")["metadata"]["name"] == "my-release-pydra-sim-webhook"


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"webhook": {"enabled": True}}, id="webhook"),
        pytest.param({"monitor": {"create": True, "kind": "ServiceMonitor"}}, id="ServiceMonitor"),
    ],
)
def test_a_digit_before_the_name_of_a_service_is_refused_in_words(values: Mapping[str, Any]) -> None:
    with pytest.raises(helm_python.HelmRenderError, match="a Service's name begins with a letter, and 1pydra-"):
        render(SIM, values, name="1pydra")
    assert render(SIM, values, {"fullnameOverride": "one"}, name="1pydra").one("Service")


def test_what_the_pod_of_helm_test_gets_is_json_with_any_name_in_it() -> None:
    classes = {"a": {"extendedResourceName": 'it\'s "<so>"'}}
    objects = render(SIM, at("backends.sim.deviceClasses.classes", classes))
    assert json.loads(objects.one("Pod")["spec"]["containers"][0]["args"][-1])["classes"]["a"] == 'it\'s "<so>"'
