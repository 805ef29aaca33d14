"""The script of `helm test` as a process, against an API server over TLS: it finds what is wrong, and says it."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.chart.rendering import CHART, SIM, at, overlay, render

TOKEN = "the-pod's-own"
AGENTS = "/apis/apps/v1/namespaces/pydra-system/daemonsets/pydra-sim"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/pydra-system/resourceclaims"

Answers = dict[str, tuple[int, Mapping[str, Any]]]


def refused(message: str, code: int = 403) -> tuple[int, Mapping[str, Any]]:
    return code, {"kind": "Status", "status": "Failure", "message": message, "code": code}


WELL: Answers = {
    AGENTS: (200, {"status": {"desiredNumberScheduled": 3, "numberReady": 3}}),
    SLICES: (200, {"items": [{"spec": {"driver": "sim.pydra.dev"}}]}),
    f"{CLASSES}/sim.pydra.dev": (200, {}),
    f"{CLASSES}/partition.sim.pydra.dev": (200, {}),
    CLAIMS: refused("denied: spec.devices.config[0].opaque.parameters: no such kind", 422),
}


@contextmanager
def serve(answers: Answers, scratch: Path) -> Iterator[dict[str, str]]:
    """The variables with which a pod would find this API server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            wanted = {SLICES: "limit=1&fieldSelector=spec.driver=sim.pydra.dev", CLAIMS: "dryRun=All"}.get(path, "")
            code, body = answers.get(path, refused("not found", 404))
            if self.headers["Authorization"] != f"Bearer {TOKEN}" or query != wanted:
                code, body = refused(f"asked {self.path} with {self.headers['Authorization']}", 401)
            text = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_POST(self) -> None:
            claim = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert claim["spec"]["devices"]["config"][0]["opaque"]["driver"] == "sim.pydra.dev"
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    make_certificate(scratch)
    (scratch / "token").write_text(TOKEN)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(scratch / "ca.crt", scratch / "key.pem")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield {
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(server.server_address[1]),
                "PYDRA_TEST_ACCOUNT": str(scratch),
                "PYDRA_TEST_PATIENCE": "0",
            }
        finally:
            server.shutdown()
            thread.join()


def make_certificate(scratch: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    (scratch / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (scratch / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))


def run(environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """The command of the pod that the chart makes."""
    pod = render(overlay(SIM, at("webhook.enabled", True))).one("Pod")
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["python", "-c"]
    command = [sys.executable, "-c", *container["args"]]
    return subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=30, check=False
    )


def test_a_release_that_is_well_passes(tmp_path: Path) -> None:
    with serve(WELL, tmp_path) as environ:
        done = run(environ)
    assert (done.returncode, done.stdout) == (0, "all is well: sim.pydra.dev\n"), done.stderr


@pytest.mark.parametrize(
    ("path", "answer", "words"),
    [
        pytest.param(
            AGENTS,
            (200, {"status": {"desiredNumberScheduled": 0}}),
            "DaemonSet pydra-sim: no node has the labels that it asks for",
            id="no node",
        ),
        pytest.param(
            AGENTS,
            (200, {"status": {"desiredNumberScheduled": 3, "numberReady": 2}}),
            "DaemonSet pydra-sim: 2 of 3 agents are ready",
            id="one is not ready",
        ),
        pytest.param(
            AGENTS,
            refused("daemonsets is forbidden"),
            "DaemonSet pydra-sim: daemonsets is forbidden",
            id="it may not look",
        ),
        pytest.param(
            SLICES,
            (200, {"items": []}),
            "driver sim.pydra.dev: no ResourceSlice is published",
            id="nothing is published",
        ),
        pytest.param(
            SLICES,
            refused("slices are forbidden"),
            "driver sim.pydra.dev: slices are forbidden",
            id="it may not see slices",
        ),
        pytest.param(
            f"{CLASSES}/sim.pydra.dev", refused("gone", 404), "DeviceClass sim.pydra.dev: gone", id="no class"
        ),
        pytest.param(
            CLAIMS,
            (201, {}),
            "webhook: a claim with a config that driver sim.pydra.dev does not know was accepted",
            id="nobody refuses",
        ),
        pytest.param(
            CLAIMS,
            refused("failed calling webhook: x509: certificate has expired", 500),
            "webhook: failed calling webhook: x509: certificate has expired",
            id="the webhook's certificate",
        ),
    ],
)
def test_what_is_wrong_is_said(path: str, answer: tuple[int, Mapping[str, Any]], words: str, tmp_path: Path) -> None:
    with serve({**WELL, path: answer}, tmp_path) as environ:
        done = run(environ)
    assert done.returncode == 1
    assert done.stderr.startswith(words)
    assert len(done.stderr.splitlines()) == 1


def test_an_api_server_that_is_not_there_is_said_without_a_traceback(tmp_path: Path) -> None:
    with serve(WELL, tmp_path) as environ:
        pass
    done = run(environ)
    assert done.returncode == 1
    assert done.stderr.startswith("the API server does not answer:")
    assert "Traceback" not in done.stderr


def test_the_script_is_handed_over_as_it_is() -> None:
    (container,) = render(SIM).one("Pod")["spec"]["containers"]
    script, release = container["args"]
    assert script.rstrip() == (CHART / "files" / "helm_test.py").read_text().rstrip()
    assert yaml.safe_load(release) == {
        "namespace": "pydra-system",
        "daemonSets": ["pydra-sim"],
        "drivers": ["sim.pydra.dev"],
        "classes": ["partition.sim.pydra.dev", "sim.pydra.dev"],
        "webhook": False,
    }
