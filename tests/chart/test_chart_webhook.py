"""The webhook: its certificate is for its Service, its Service for its pods, and it is asked what it knows."""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from pydra.admission.review import build_rules
from pydra.cli import options
from pydra.cli.options import read_values
from pydra.cli.tool import build_parser
from pydra.settings import parse_webhook_settings
from tests.chart.rendering import BOTH, CHART, SIM, Object, Objects, at, overlay, render

WEBHOOK = overlay(SIM, at("webhook.enabled", True))


def pem(secret: Object, key: str) -> bytes:
    return base64.b64decode(secret["data"][key])


def container(objects: Objects) -> Object:
    (found,) = objects.one("Deployment")["spec"]["template"]["spec"]["containers"]
    one: Object = found
    return one


def test_the_api_server_would_trust_the_generated_certificate() -> None:
    objects = render(WEBHOOK)
    secret = objects.one("Secret")
    client = objects.one("ValidatingWebhookConfiguration")["webhooks"][0]["clientConfig"]
    trusted = x509.load_pem_x509_certificates(base64.b64decode(client["caBundle"]))
    service = client["service"]
    host = x509.DNSName(f"{service['name']}.{service['namespace']}.svc")
    verifier = PolicyBuilder().store(Store(trusted)).time(datetime.now(UTC)).build_server_verifier(host)
    verifier.verify(x509.load_pem_x509_certificate(pem(secret, "tls.crt")), [])
    assert b"PRIVATE KEY" in pem(secret, "tls.key")


def test_the_service_leads_to_the_webhooks_pods_where_they_listen() -> None:
    objects = render(WEBHOOK)
    service, deployment = objects.one("Service"), objects.one("Deployment")
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    client = objects.one("ValidatingWebhookConfiguration")["webhooks"][0]["clientConfig"]["service"]
    assert (client["name"], client["port"], client["path"]) == (service["metadata"]["name"], port["port"], "/validate")
    listens = {one["name"]: one["containerPort"] for one in container(objects)["ports"]}
    assert f"--address=0.0.0.0:{listens[port['targetPort']]}" in container(objects)["args"]


def test_the_container_finds_the_certificate_of_its_secret() -> None:
    objects = render(WEBHOOK)
    pod = objects.one("Deployment")["spec"]["template"]["spec"]
    (mount,) = [one for one in container(objects)["volumeMounts"] if one["name"] == "tls"]
    assert {f"--tls-cert={mount['mountPath']}/tls.crt", f"--tls-key={mount['mountPath']}/tls.key"} <= set(
        container(objects)["args"]
    )
    (volume,) = [one for one in pod["volumes"] if one["name"] == "tls"]
    assert volume["secret"] == {"secretName": objects.one("Secret")["metadata"]["name"], "defaultMode": 0o440}
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"], "or it could not read them"


def test_each_backend_has_a_webhook_that_is_asked_for_its_driver_only() -> None:
    objects = render(BOTH, at("webhook.enabled", True))
    asked = {
        one["metadata"]["name"]: json.loads(
            re.findall(r"in (\[.*\])\)", one["webhooks"][0]["matchConditions"][0]["expression"])[0]
        )
        for one in objects.all("ValidatingWebhookConfiguration")
    }
    assert asked == {
        "pydra-nvidia-webhook.pydra-system": ["gpu.nvidia.com"],
        "pydra-sim-webhook.pydra-system": ["sim.pydra.dev"],
    }
    one_pod = render(BOTH, at("webhook.enabled", True), {"onePod": True}).one("ValidatingWebhookConfiguration")
    assert '["gpu.nvidia.com","sim.pydra.dev"]' in one_pod["webhooks"][0]["matchConditions"][0]["expression"]


def test_the_webhook_is_asked_about_what_brings_a_config_and_not_about_finalizers_of_claims() -> None:
    rules = render(WEBHOOK).one("ValidatingWebhookConfiguration")["webhooks"][0]["rules"]
    asked = {
        (resource, operation)
        for rule in rules
        for resource in rule["resources"]
        for operation in rule["operations"]
        if rule["apiGroups"] == ["resource.k8s.io"] and {*rule["apiVersions"]} == {"v1", "v1beta1", "v1beta2"}
    }
    assert asked == {
        ("resourceclaims", "CREATE"),
        ("resourceclaimtemplates", "CREATE"),
        ("deviceclasses", "CREATE"),
        ("deviceclasses", "UPDATE"),
    }
    assert rules == build_rules()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_network_policy_lets_reviews_in_where_there_is_a_webhook(*, enabled: bool) -> None:
    policy = render(SIM, {"networkPolicy": {"create": True}, "webhook": {"enabled": enabled}}).one("NetworkPolicy")
    ports = [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]
    assert ports == (["metrics", "webhook"] if enabled else ["metrics"])


def test_cert_manager_makes_a_certificate_for_the_service_and_tells_the_api_server() -> None:
    objects = render(WEBHOOK, at("webhook.tls.mode", "certManager"))
    certificate, service = objects.one("Certificate", "pydra-sim-webhook"), objects.one("Service")["metadata"]
    assert certificate["spec"]["dnsNames"] == [f"{service['name']}.{service['namespace']}.svc"]
    volumes = objects.one("Deployment")["spec"]["template"]["spec"]["volumes"]
    assert volumes[0]["secret"]["secretName"] == certificate["spec"]["secretName"]
    configuration = objects.one("ValidatingWebhookConfiguration")
    wanted = f"{certificate['metadata']['namespace']}/{certificate['metadata']['name']}"
    assert configuration["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": wanted}
    assert "caBundle" not in configuration["webhooks"][0]["clientConfig"]


def test_no_mode_uses_the_secret_of_another_so_that_they_can_be_changed() -> None:
    def secret_names(mode: str) -> set[str]:
        objects = render(WEBHOOK, at("webhook.tls.mode", mode))
        made = {one["spec"]["secretName"] for one in objects.all("Certificate")}
        (volume,) = [
            one["secret"]["secretName"]
            for one in objects.one("Deployment")["spec"]["template"]["spec"]["volumes"]
            if "secret" in one
        ]
        return made | {one["metadata"]["name"] for one in objects.all("Secret")} | {volume}

    ours, theirs = secret_names("generated"), secret_names("certManager")
    assert ours == {"pydra-sim-webhook-tls"}
    assert theirs == {"pydra-sim-webhook-cert-manager", "pydra-webhook-ca"}
    guide = (CHART.parents[1] / "docs" / "upgrade.md").read_text()
    assert f"delete secret {' '.join(sorted(theirs))} " in guide, "cert-manager leaves them"


def test_the_ca_of_cert_manager_outlives_what_it_signs() -> None:
    objects = render(WEBHOOK, at("webhook.tls.mode", "certManager"))
    issuer = objects.one("Issuer", objects.one("Certificate", "pydra-sim-webhook")["spec"]["issuerRef"]["name"])
    (authority,) = [one for one in objects.all("Certificate") if one["spec"].get("isCA")]
    assert issuer["spec"] == {"ca": {"secretName": authority["spec"]["secretName"]}}
    assert (authority["spec"]["duration"], authority["spec"]["privateKey"]) == ("87600h", {"rotationPolicy": "Never"})
    assert objects.one("Issuer", authority["spec"]["issuerRef"]["name"])["spec"] == {"selfSigned": {}}


def test_pods_that_cannot_start_keep_no_node_from_being_drained() -> None:
    budget = render(WEBHOOK).one("PodDisruptionBudget")["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


def test_classes_of_the_release_itself_are_not_judged_and_those_of_a_namesake_are() -> None:
    here, there = (render(WEBHOOK, namespace=one) for one in ("here", "there"))
    condition = here.one("ValidatingWebhookConfiguration")["webhooks"][0]["matchConditions"][1]["expression"]
    marks = [one.one("DeviceClass", "sim.pydra.dev")["metadata"]["annotations"] for one in (here, there)]
    assert [one["pydra.dev/release"] for one in marks] == ["here/pydra", "there/pydra"]
    assert condition.endswith("annotations[?'pydra.dev/release'].orValue('') != 'here/pydra'")


def test_the_webhook_reads_what_the_chart_hands_to_it(tmp_path: Path) -> None:
    mps_off = {"onePod": True, "backends": {"nvidia": {"settings": {"mps": False}}}}
    objects = render(BOTH, at("webhook.enabled", True), mps_off)
    pod = objects.one("Deployment")["spec"]["template"]
    (volume,) = [one for one in pod["spec"]["volumes"] if one["name"] == "config"]
    (mount,) = [one for one in container(objects)["volumeMounts"] if one["name"] == "config"]
    (item,) = volume["downwardAPI"]["items"]
    (name,) = re.findall(r"annotations\['(.+)'\]", item["fieldRef"]["fieldPath"])
    (tmp_path / "file").write_text(pod["metadata"]["annotations"][name])
    place = f"--config={mount['mountPath']}/{item['path']}"
    arguments = [f"--config={tmp_path}/file" if one == place else one for one in container(objects)["args"]]
    parsed = build_parser().parse_args(["webhook", *arguments])
    settings = parse_webhook_settings(read_values(parsed, {}, options.WEBHOOK))
    assert settings.drivers == {"nvidia": "gpu.nvidia.com", "sim": "sim.pydra.dev"}
    assert settings.endpoint == ("0.0.0.0", 8443)
    assert settings.http_endpoint == ("0.0.0.0", 9464)
    assert (settings.tls_cert, settings.tls_key) == ("/tls/tls.crt", "/tls/tls.key")
    assert settings.backend_settings["nvidia"]["mps"] is False, "it refuses what the settings switch off"
