"""Credentials from real files and against a server that checks them."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import itertools
import ssl
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pydra.errors import KubeError, SettingsError, Unavailable
from pydra.kube.client import KubeClient
from pydra.kube.credentials import Credentials, load_credentials
from pydra.kube.resources import NAMESPACES
from pydra_dev.apiserver import ApiServer, serve_api


async def read(credentials: Credentials) -> str:
    async with KubeClient(credentials, retry_for=0.0) as client:
        return str((await client.get(NAMESPACES, "default"))["metadata"]["name"])


def write_kubeconfig(path: Path, server: str, user: dict[str, object], **cluster: object) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


class Authority:
    """A certificate authority without key identifiers, as several clouds have, and a server's certificate of it."""

    def __init__(self, directory: Path) -> None:
        self.ca = directory / "ca.crt"
        key, name = ec.generate_private_key(ec.SECP256R1()), self._name("ca")
        authority = self._build(name, name, key.public_key(), x509.BasicConstraints(ca=True, path_length=None))
        self.ca.write_bytes(authority.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        server_key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        server = self._build(self._name("server"), name, server_key.public_key(), names).sign(key, hashes.SHA256())
        pair = directory / "server.pem"
        pair.write_bytes(
            server.public_bytes(serialization.Encoding.PEM)
            + server_key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.load_cert_chain(pair)

    @staticmethod
    def _name(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    @staticmethod
    def _build(
        subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, extension: x509.ExtensionType
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        )


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def pod_environment(server: ApiServer) -> dict[str, str]:
    host, _, port = server.url.removeprefix("https://").partition(":")
    return {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}


async def test_a_pod_uses_its_service_account_and_its_rotated_token(tmp_path: Path, authority: Authority) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    async with serve_api(tls=authority.context, token="first") as server:
        credentials = await load_credentials(environ=pod_environment(server), service_account=str(tmp_path))
        async with KubeClient(credentials) as client:
            assert await client.get(NAMESPACES, "default")
            token.write_text("second")
            server.token = "second"
            assert await client.get(NAMESPACES, "default"), "refused once, read again, and accepted"
            server.token = "third"
            with pytest.raises(KubeError, match=r"401 Unauthorized.*credentials are not accepted"):
                await client.get(NAMESPACES, "default")


async def test_a_token_is_read_again_every_minute(tmp_path: Path, authority: Authority) -> None:
    now = [100.0]
    (tmp_path / "token").write_text("first")
    async with serve_api(tls=authority.context) as server:
        credentials = await load_credentials(
            environ=pod_environment(server), service_account=str(tmp_path), clock=lambda: now[0]
        )
        (tmp_path / "token").write_text("second")
        before, now[0] = credentials.stale, now[0] + 61
        assert (before, credentials.stale) == (False, True)
        await credentials.renew()
        assert (credentials.authorization, credentials.stale) == ("Bearer second", False)


async def test_a_token_that_cannot_be_read_leaves_the_old_one(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "token").write_text("first")
    async with serve_api(tls=authority.context) as server:
        credentials = await load_credentials(environ=pod_environment(server), service_account=str(tmp_path))
        (tmp_path / "token").unlink()
        await credentials.renew(refused=credentials.authorization)
        assert credentials.authorization == "Bearer first"


async def test_a_server_with_another_authority_is_not_trusted(tmp_path: Path, authority: Authority) -> None:
    other = tmp_path / "other"
    other.mkdir()
    Authority(other)
    (other / "token").write_text("x")
    async with serve_api(tls=authority.context) as server:
        credentials = await load_credentials(environ=pod_environment(server), service_account=str(other))
        with pytest.raises(Unavailable, match="certificate verify failed"):
            await read(credentials)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="Python is strict about certificates from 3.13 on")
async def test_strictness_about_certificates_is_a_choice(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "token").write_text("x")
    async with serve_api(tls=authority.context) as server:
        environ = pod_environment(server)
        strict = await load_credentials(environ=environ, service_account=str(tmp_path), verify_x509_strict=True)
        with pytest.raises(Unavailable, match="certificate verify failed"):
            await read(strict)


async def test_a_kubeconfig_with_a_token_file_follows_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    async with serve_api(token="first") as server:
        path = write_kubeconfig(tmp_path / "config", server.url, {"tokenFile": "token"})
        async with KubeClient(await load_credentials(environ={"KUBECONFIG": path})) as client:
            assert await client.get(NAMESPACES, "default")
            (tmp_path / "token").write_text("second\n")
            server.token = "second"
            assert await client.get(NAMESPACES, "default")


async def test_a_kubeconfig_may_run_a_program_for_the_token(tmp_path: Path) -> None:
    answer = '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "made"}}'
    user: dict[str, object] = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": [answer]}
    }
    async with serve_api(token="made") as server:
        path = write_kubeconfig(tmp_path / "config", server.url, user)
        assert await read(await load_credentials(environ={}, kubeconfig=path)) == "default"


async def test_a_kubeconfig_with_authority_data_is_verified(tmp_path: Path, authority: Authority) -> None:
    async with serve_api(tls=authority.context) as server:
        path = write_kubeconfig(
            tmp_path / "config", server.url, {"token": "x"}, **{"certificate-authority": str(authority.ca)}
        )
        assert await read(await load_credentials(environ={}, kubeconfig=path)) == "default"


async def test_a_kubeconfig_may_carry_its_certificates_which_come_to_no_disk(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = base64.b64encode(authority.ca.read_bytes()).decode()
    async with serve_api(tls=authority.context) as server:
        path = write_kubeconfig(tmp_path / "config", server.url, {"token": "x"}, **{"certificate-authority-data": data})
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "shared"))
        (tmp_path / "shared").mkdir()
        credentials = await load_credentials(environ={}, kubeconfig=path, clock=itertools.count(step=3600.0).__next__)
        assert await read(credentials) == "default"
        assert credentials.stale
        await credentials.renew()
        assert await read(credentials) == "default", "also after it was loaded again"
        assert list((tmp_path / "shared").iterdir()) == [], "a process that is killed leaves no key behind"


async def test_a_home_directory_with_a_kubeconfig_is_the_last_resort(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    write_kubeconfig(tmp_path / ".kube" / "config", "http://127.0.0.1:1/", {})
    credentials = await load_credentials(environ={"HOME": str(tmp_path)})
    assert (credentials.server, credentials.authorization) == ("http://127.0.0.1:1", "")


async def test_without_any_credentials_it_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"KUBERNETES_SERVICE_HOST is not set.*\.kube/config does not exist"):
        await load_credentials(environ={"HOME": str(tmp_path)})


UNUSABLE = {
    "no such file": (None, "there is no file"),
    "empty": ("", "not a usable kubeconfig"),
    "not YAML": ("{", "while parsing"),
    "a list": ("[]", "not a usable kubeconfig"),
    "no context": ("clusters: []\ncontexts: []\nusers: []\ncurrent-context: absent", "absent"),
    "no server": (
        "clusters: [{name: c, cluster: {}}]\ncontexts: [{name: x, context: {cluster: c}}]\nusers: []\n"
        "current-context: x",
        "not a usable kubeconfig",
    ),
    "a server of another protocol": (
        "clusters: [{name: c, cluster: {server: 'ftp://x'}}]\ncontexts: [{name: x, context: {cluster: c}}]\n"
        "users: []\ncurrent-context: x",
        "must begin with https:// or http://",
    ),
}


@pytest.mark.parametrize(("text", "problem"), UNUSABLE.values(), ids=UNUSABLE)
async def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, text: str | None, problem: str) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingsError, match=problem) as refusal:
        await load_credentials(environ={}, kubeconfig=str(path))
    assert str(path) in str(refusal.value)


async def test_a_pod_without_a_token_says_so(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(SettingsError, match=r"service account: .*token"):
        await load_credentials(environ=environ, service_account=str(tmp_path))
