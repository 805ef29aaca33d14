"""The guide for admins: its objects are those that the code serves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pydra.admission.review import build_rules
from pydra.admission.webhook import PATH
from pydra.cli.options import WEBHOOK, read_values
from pydra.cli.tool import build_parser
from pydra.settings import parse_webhook_settings

GUIDE = (Path(__file__).parents[3] / "docs" / "admission.md").read_text()


def objects() -> dict[str, Any]:
    (text,) = re.findall(r"```yaml\n(.*?)```", GUIDE, flags=re.DOTALL)
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def test_the_configuration_sends_what_the_webhook_judges() -> None:
    (webhook,) = objects()["ValidatingWebhookConfiguration"]["webhooks"]
    assert webhook["rules"] == build_rules()
    assert webhook["clientConfig"]["service"]["path"] == PATH
    assert webhook["admissionReviewVersions"] == ["v1"]


def test_the_deployment_starts_with_its_arguments_and_its_mount() -> None:
    pod = objects()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    parsed = build_parser().parse_args([*container["command"][1:], *container["args"]])
    settings = parse_webhook_settings(read_values(parsed, {}, WEBHOOK))
    assert (settings.tls_cert, settings.tls_key) == ("/tls/tls.crt", "/tls/tls.key")
    assert settings.endpoint[1] == container["ports"][0]["containerPort"]
    assert container["volumeMounts"][0]["mountPath"] == "/tls"
    chart = yaml.safe_load((Path(__file__).parents[3] / "charts" / "pydra" / "values.yaml").read_text())
    assert container["resources"] == chart["webhook"]["resources"], "a review of 4 MiB takes up to 220"
    assert pod["volumes"][0]["secret"]["secretName"] == objects()["Certificate"]["spec"]["secretName"]


def test_the_certificate_is_for_the_name_by_which_the_api_server_calls() -> None:
    service = objects()["Service"]["metadata"]
    assert objects()["Certificate"]["spec"]["dnsNames"] == [f"{service['name']}.{service['namespace']}.svc"]


@pytest.mark.parametrize("flag", sorted(set(re.findall(r"`(--[a-z-]+)", GUIDE)) - {"--set"}))
def test_every_flag_in_the_guide_exists(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("webhook", "policy", "schema"):
        with pytest.raises(SystemExit):
            build_parser().parse_args([command, "--help"])
    assert flag in capsys.readouterr().out
