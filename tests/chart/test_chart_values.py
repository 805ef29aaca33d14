"""Every value has an effect, on what it says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from tests.chart.effects import CASES, TOLERATION, B, Look, find_terms
from tests.chart.rendering import CHART, NVIDIA, SIM, at, by_name, overlay, render

AROUND = {"global", "enabled"}
"""Values for a chart around this one."""


@pytest.mark.parametrize(("path", "around", "value", "look", "expected"), CASES, ids=[case[0] for case in CASES])
def test_a_value_has_its_effect(path: str, around: Mapping[str, Any], value: Any, look: Look, expected: Any) -> None:
    try:
        before = look(render(around))
    except LookupError:
        before = None if expected is not None else "not there"
    assert before != expected, "this is so without the value too"
    assert expected == look(render(around, at(path, value)))


def leaves(part: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, below in part.get("properties", {}).items():
        if (*path, name) == ("backends",):
            continue
        if "description" in below:
            yield ".".join((*path, name))
        elif "$ref" not in below:
            yield from leaves(below, (*path, name))


def test_every_value_of_the_schema_is_in_the_table() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    told = {path for path in leaves(schema) if path not in AROUND}
    told |= {f"{B}.{path}" for path in leaves(schema["$defs"]["backend"])}
    assert told == {path for path, *_ in CASES}


def test_every_default_is_allowed_by_the_schema_and_explained_there() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(defaults) == set(schema["properties"]) - AROUND
    for name, value in defaults.items():
        known = schema["properties"][name].get("properties")
        if known and name != "backends":
            assert set(value) == set(known), name
    assert set(defaults["backends"]["nvidia"]) | set(defaults["backends"]["sim"]) <= set(
        schema["$defs"]["backend"]["properties"]
    )


def nullable(part: Mapping[str, Any], defaults: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, bool]]:
    """Each value with a default, and whether it may be null, which to Helm means that there is none."""
    for name, default in defaults.items():
        if name not in part.get("required", ()):
            yield path + name, True
        elif isinstance(default, dict):
            yield from nullable(part["properties"][name], default, f"{path}{name}.")
        else:
            yield path + name, False


def test_null_is_like_empty_or_refused_with_the_name_of_the_value() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    found = dict(nullable(schema, {name: one for name, one in defaults.items() if name != "backends"}))
    for around in (
        SIM,
        overlay(
            SIM, {one: {"create": True} for one in ("alerts", "monitor", "dashboard")}, {"webhook": {"enabled": True}}
        ),
    ):
        render(around, *(at(path, None) for path, allowed in found.items() if allowed))
    refused = [path for path, allowed in found.items() if not allowed]
    with pytest.raises(helm_python.HelmValuesError) as caught:
        render(SIM, *(at(path, None) for path in refused))
    assert [one for one in refused if f"'{one.rpartition('.')[2]}'" not in str(caught.value)] == []


def test_a_chart_around_this_one_may_have_it_by_the_condition_that_helm_suggests(tmp_path: Path) -> None:
    shutil.copytree(CHART, tmp_path / "charts" / "pydra")
    dependency = {"name": "pydra", "version": "0.1.0", "condition": "pydra.enabled"}
    about = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [dependency]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(about))
    files = helm_python.Chart.load(tmp_path).render({"pydra": {"enabled": True, **SIM}}, name="r", namespace="n")
    assert "r-pydra-sim" in files["platform/charts/pydra/templates/daemonset.yaml"]


def test_onepod_unites_what_its_backends_need() -> None:
    objects = render(
        overlay(SIM, NVIDIA, {"onePod": True, "packages": {"names": ["a"]}}),
        at("backends.sim", {"packages": ["b"], "nodeSelector": {"sim": "yes"}, "tolerations": [TOLERATION]}),
        at("backends.nvidia.packages", ["a", "c"]),
    )
    assert objects.agent()["image"] == "pydra:0.1.0"
    assert objects.agent()["args"] == [
        "--backend=nvidia",
        "--backend=sim",
        "--driver=nvidia=gpu.nvidia.com",
        "--driver=sim=sim.pydra.dev",
    ]
    assert objects.pod()["initContainers"][0]["args"] == ["a", "c", "b"]
    assert objects.agent()["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert objects.pod()["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}, TOLERATION]
    assert {"key": "sim", "operator": "In", "values": ["yes"]} in [
        one for term in find_terms(objects) for one in term["matchExpressions"]
    ]
    assert len(find_terms(objects)) == 5
    assert {"plugin-nvidia", "plugin-sim"} <= set(by_name(objects.agent()["volumeMounts"]))
    assert objects.one("DaemonSet")["metadata"]["annotations"]["pydra.dev/drivers"] == "gpu.nvidia.com,sim.pydra.dev"


@pytest.mark.parametrize(
    ("values", "image"),
    [
        pytest.param({}, "pydra-nvidia-sim:0.1.0", id="all in it"),
        pytest.param(at("image", {"registry": "r.io", "repository": "team/p", "tag": "2"}), "r.io/team/p-nvidia-sim:2"),
        pytest.param(at("backends.nvidia.enabled", False), "pydra-sim:0.1.0", id="one"),
        pytest.param(at("packages.names", ["more"]), "pydra-nvidia-sim:0.1.0", id="more beside them"),
        pytest.param(at("backends.sim.packages", ["pydra-sim"]), "pydra-nvidia:0.1.0", id="one by pip"),
        pytest.param(
            overlay(at("backends.sim.packages", ["a"]), at("image.onePodRepository", "all")), "all:0.1.0", id="named"
        ),
    ],
)
def test_onepod_asks_for_the_image_as_it_is_called_when_it_is_built(values: Mapping[str, Any], image: str) -> None:
    objects = render(SIM, NVIDIA, at("onePod", True), at("webhook.enabled", True), values)
    (webhook,) = objects.one("Deployment")["spec"]["template"]["spec"]["containers"]
    (test,) = objects.one("Pod")["spec"]["containers"]
    assert [objects.agent()["image"], webhook["image"], test["image"]] == [image] * 3


def test_onepod_runs_everywhere_when_one_of_its_backends_does() -> None:
    assert "affinity" not in render(overlay(SIM, NVIDIA, {"onePod": True})).pod()
