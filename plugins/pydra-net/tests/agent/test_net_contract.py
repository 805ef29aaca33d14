"""The backend keeps pydra's contract, on a simulated machine."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from cel_expr_python import cel

from pydra.testing import check_backend
from tests.forked import run_forked

README = Path(__file__).parents[2] / "README.md"


def test_it_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYDRA_NET_SCENARIO", "server")
    monkeypatch.setenv("PYDRA_NET_STATE", str(tmp_path))
    report = check_backend("net")
    assert report.ok, report.text


@pytest.mark.timeout(120)
def test_the_demo_shows_the_interface_that_the_pod_gets() -> None:
    arguments = ["dev", "--backend", "net", "--scenario", "server", "--once"]
    done = run_forked("pydra.cli.tool", arguments, os.environ)
    assert "+ network  dummy0 (device dummy0), 02:00:00:00:01:00\n" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("resource", "config", "allowed"),
    [
        ("resourceclaims", [{"opaque": {"driver": "dra.net", "parameters": {"interface": {}}}}], False),
        ("resourceclaims", [{"opaque": {"driver": "gpu.example.com", "parameters": {}}}], True),
        ("resourceclaims", None, True),
        ("resourceclaimtemplates", [{"requests": ["a"]}, {"opaque": {"driver": "dra.net"}}], False),
        ("resourceclaimtemplates", None, True),
    ],
)
def test_by_the_policy_of_the_page_claims_do_not_configure_networks(resource: str, config: Any, allowed: bool) -> None:
    (text,) = re.findall(r"```yaml\n(apiVersion: admissionregistration.*?)```", README.read_text(), flags=re.DOTALL)
    policy, binding = yaml.safe_load_all(text)
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    spec: dict[str, Any] = {"devices": {"requests": []} | ({"config": config} if config is not None else {})}
    found = {"spec": spec if resource == "resourceclaims" else {"spec": spec}}
    environment = cel.NewEnvConfigFromYaml(
        "extensions: [{name: optional}]\nvariables: [{name: request, type_name: dyn}, {name: object, type_name: dyn}]"
    )
    (validation,) = policy["spec"]["validations"]
    compiled = cel.NewEnv(config=environment).compile(validation["expression"])
    told = {"request": {"resource": {"resource": resource}}, "object": found}
    assert compiled.eval(data=told).plain_value() is allowed
