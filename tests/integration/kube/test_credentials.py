"""Credentials from real files and against a server that checks them."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import ssl
import sys
import tempfile
import tracemalloc
from pathlib import Path

import anyio
import pytest
import yaml

from pydra.errors import KubeError, SettingsError, Unavailable
from pydra.kube.api_resources import NAMESPACES
from pydra.kube.client import KubeClient
from pydra.kube.credentials import Credentials, load_credentials
from pydra_dev.apiserver.server import ApiServer, serve_api
from tests.integration.kube.authority import Authority


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


async def test_the_service_of_the_api_server_may_have_an_ipv6_address(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "token").write_text("x")
    async with serve_api(tls=authority.context, host="::1") as server:
        environ = {"KUBERNETES_SERVICE_HOST": "::1", "KUBERNETES_SERVICE_PORT": server.url.rpartition(":")[2]}
        assert await read(await load_credentials(environ=environ, service_account=str(tmp_path))) == "default"


async def test_the_api_server_must_speak_tls_1_2_or_newer(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "token").write_text("x")
    async with serve_api(tls=authority.context) as server:
        credentials = await load_credentials(environ=pod_environment(server), service_account=str(tmp_path))
        assert await read(credentials) == "default"
    assert isinstance(credentials.access.ssl, ssl.SSLContext)
    assert credentials.access.ssl.minimum_version >= ssl.TLSVersion.TLSv1_2


async def test_a_token_is_read_again_every_minute(tmp_path: Path, authority: Authority) -> None:
    now = [100.0]
    (tmp_path / "token").write_text("first")
    async with serve_api(tls=authority.context) as server:
        credentials = await load_credentials(
            environ=pod_environment(server), service_account=str(tmp_path), clock=lambda: now[0]
        )
        (tmp_path / "token").write_text("second")
        async with KubeClient(credentials) as client:
            await client.get(NAMESPACES, "default")
            before, now[0] = credentials.access, now[0] + 61
            await client.get(NAMESPACES, "default")
        assert before.headers["Authorization"] == "Bearer first"
        assert credentials.access.headers["Authorization"] == "Bearer second"
        assert credentials.access.ssl is before.ssl, "connections stay open"


@pytest.mark.parametrize(
    "content", [None, "", "two\nlines", "caf\xe9"], ids=["absent", "empty", "two lines", "not ASCII"]
)
async def test_a_token_that_cannot_be_used_leaves_the_old_one(
    tmp_path: Path, authority: Authority, content: str | None
) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    clock = itertools.count(step=61.0).__next__
    async with serve_api(tls=authority.context, token="first") as server:
        credentials = await load_credentials(
            environ=pod_environment(server), service_account=str(tmp_path), clock=clock
        )
        if content is None:
            token.unlink()
        else:
            token.write_text(content)
        async with KubeClient(credentials) as client:
            assert await client.get(NAMESPACES, "default")
            assert "cannot read the credentials again, the pod's service account: " in client.problem()
            token.write_text("first\n")
            assert await client.get(NAMESPACES, "default")
            assert client.problem() == ""


async def test_a_token_of_two_lines_is_refused_at_the_start(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "token").write_text("two\nlines")
    async with serve_api(tls=authority.context) as server:
        with pytest.raises(SettingsError, match="the token has several lines"):
            await load_credentials(environ=pod_environment(server), service_account=str(tmp_path))


async def test_a_server_with_another_authority_is_not_trusted_and_the_error_names_the_file(
    tmp_path: Path, authority: Authority
) -> None:
    other = Authority(tmp_path / "other")
    (other.directory / "token").write_text("x")
    async with serve_api(tls=authority.context) as server:
        credentials = await load_credentials(environ=pod_environment(server), service_account=str(other.directory))
        with pytest.raises(Unavailable, match=rf"certificate verify failed: .* \(CA file {other.ca}\)"):
            await read(credentials)


async def test_a_server_that_speaks_no_tls_is_told_from_one_that_is_away(tmp_path: Path) -> None:
    async with serve_api() as server:
        path = write_kubeconfig(tmp_path / "config", server.url.replace("http:", "https:"), {})
        with pytest.raises(Unavailable, match=r"TLS with .* failed: (wrong version number|record layer failure)"):
            await read(await load_credentials(environ={}, kubeconfig=path))


async def test_a_rotated_authority_is_followed(tmp_path: Path, authority: Authority) -> None:
    """Old connections are cut, as by a restart of the API server with a certificate of another authority."""
    (tmp_path / "token").write_text("x")
    fresh = Authority(tmp_path / "fresh")
    async with serve_api(tls=authority.context) as server:
        credentials = await load_credentials(environ=pod_environment(server), service_account=str(tmp_path))
        async with KubeClient(credentials, retry_for=0.0) as client:
            assert await client.get(NAMESPACES, "default")
            authority.context.load_cert_chain(fresh.server)
            async with server.down():
                pass
            with pytest.raises(Unavailable, match=rf"certificate verify failed.*CA file {authority.ca}"):
                await client.get(NAMESPACES, "default")
            assert str(authority.ca) in client.problem()
            authority.ca.write_bytes(fresh.ca.read_bytes())
            assert await client.get(NAMESPACES, "default")
            assert client.problem() == ""


async def test_a_rotated_client_certificate_is_followed(tmp_path: Path, authority: Authority) -> None:
    outdated = Authority(tmp_path / "outdated")
    user = {"client-certificate": str(outdated.client), "client-key": str(outdated.client)}
    authority.require_clients()
    async with serve_api(tls=authority.context) as server:
        path = write_kubeconfig(
            tmp_path / "config", server.url, dict(user), **{"certificate-authority": str(authority.ca)}
        )
        credentials = await load_credentials(environ={}, kubeconfig=path)
        async with KubeClient(credentials, retry_for=0.0) as client:
            with pytest.raises(Unavailable, match=rf"client certificate {outdated.client}"):
                await client.get(NAMESPACES, "default")
            outdated.client.write_bytes(authority.client.read_bytes())
            with pytest.raises(Unavailable):
                await client.get(NAMESPACES, "default")
            assert await client.get(NAMESPACES, "default")


async def test_a_kubeconfig_that_is_replaced_is_read_again(tmp_path: Path) -> None:
    async with serve_api(token="first") as server:
        path = write_kubeconfig(tmp_path / "config", server.url, {"token": "first"})
        async with KubeClient(await load_credentials(environ={"KUBECONFIG": path})) as client:
            assert await client.get(NAMESPACES, "default")
            write_kubeconfig(tmp_path / "config", server.url, {"token": "second"})
            server.token = "second"
            assert await client.get(NAMESPACES, "default")


async def test_credentials_for_another_server_are_not_sent_to_the_one_in_use(tmp_path: Path) -> None:
    now = 0.0
    async with serve_api(token="first") as server:
        path = write_kubeconfig(tmp_path / "config", server.url, {"token": "first"})
        credentials = await load_credentials(environ={"KUBECONFIG": path}, clock=lambda: now)
        write_kubeconfig(tmp_path / "config", "https://user:password@other.example.com", {"token": "of the other"})
        now = 3600.0
        assert await read(credentials) == "default"
    assert f"it names the server https://other.example.com now, and {server.url} is in use" in credentials.problem


async def test_a_kubeconfig_that_no_longer_switches_verification_off_is_followed(
    tmp_path: Path, authority: Authority
) -> None:
    now = 0.0
    async with serve_api(tls=authority.context) as server:
        path = write_kubeconfig(tmp_path / "config", server.url, {}, **{"insecure-skip-tls-verify": True})
        credentials = await load_credentials(environ={"KUBECONFIG": path}, clock=lambda: now)
        assert await read(credentials) == "default"
        write_kubeconfig(tmp_path / "config", server.url, {})
        now = 3600.0
        with pytest.raises(Unavailable, match="certificate verify failed"):
            await read(credentials)


async def test_of_several_kubeconfigs_the_first_names_the_context_and_absent_ones_are_left_out(tmp_path: Path) -> None:
    async with serve_api(token="mine") as server:
        first = write_kubeconfig(tmp_path / "first", server.url, {"token": "mine"})
        second = tmp_path / "second"
        second.write_text("current-context: production\nclusters: []\nusers: []\ncontexts: []\n")
        environ = {"KUBECONFIG": f"{tmp_path}/absent:{first}:{second}"}
        assert await read(await load_credentials(environ=environ)) == "default"


async def test_files_that_a_kubeconfig_names_are_beside_it_whichever_has_the_cluster(
    tmp_path: Path, authority: Authority
) -> None:
    authority.require_clients()
    (tmp_path / "users").mkdir()
    authority.client.rename(tmp_path / "users" / "mine.pem")
    user: dict[str, object] = {"client-certificate": "mine.pem", "client-key": "mine.pem"}
    async with serve_api(tls=authority.context) as server:
        users = write_kubeconfig(tmp_path / "users" / "config", server.url, user)
        clusters = tmp_path / "clusters"
        write_kubeconfig(clusters, server.url, {}, **{"certificate-authority": "ca.crt"})
        others = {"users": [], "current-context": ""}
        clusters.write_text(yaml.safe_dump(yaml.safe_load(clusters.read_text()) | others))
        assert await read(await load_credentials(environ={"KUBECONFIG": f"{clusters}:{users}"})) == "default"


async def test_the_token_of_a_file_is_newer_than_the_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("new")
    async with serve_api(token="new") as server:
        path = write_kubeconfig(tmp_path / "config", server.url, {"tokenFile": "token", "token": "old"})
        assert await read(await load_credentials(environ={"KUBECONFIG": path})) == "default"


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


async def test_a_program_for_the_token_is_told_of_the_cluster_if_it_wants_to_know(
    tmp_path: Path, authority: Authority
) -> None:
    """As client-go tells it, with the cluster's own configuration for the program."""
    api_version = "client.authentication.k8s.io/v1"
    answer = f'{{"apiVersion": "{api_version}", "kind": "ExecCredential", "status": {{"token": "made"}}}}'
    script = f"printenv KUBERNETES_EXEC_INFO > {tmp_path}/told; echo '{answer}'"
    plugin = {"apiVersion": api_version, "command": "sh", "args": ["-c", script], "provideClusterInfo": True}
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "us"}}
    cluster = {"certificate-authority": "ca.crt", "tls-server-name": "api", "extensions": [extension]}
    async with serve_api(token="made", tls=authority.context) as server:
        path = write_kubeconfig(tmp_path / "config", server.url, {"exec": plugin}, **cluster)
        await load_credentials(environ={}, kubeconfig=path)
        assert json.loads((tmp_path / "told").read_text())["spec"] == {
            "interactive": False,
            "cluster": {
                "server": server.url,
                "tls-server-name": "api",
                "certificate-authority-data": base64.b64encode((tmp_path / "ca.crt").read_bytes()).decode(),
                "config": {"audience": "us"},
            },
        }


async def test_a_program_for_the_token_is_told_of_a_cluster_without_a_ca(tmp_path: Path) -> None:
    api_version = "client.authentication.k8s.io/v1"
    answer = f'{{"apiVersion": "{api_version}", "kind": "ExecCredential", "status": {{"token": "made"}}}}'
    plugin = {"apiVersion": api_version, "command": "echo", "args": [answer], "provideClusterInfo": True}
    async with serve_api(token="made") as server:
        path = write_kubeconfig(tmp_path / "config", server.url, {"exec": plugin}, **{"certificate-authority": ""})
        assert await read(await load_credentials(environ={}, kubeconfig=path)) == "default"


async def test_a_program_for_the_token_may_be_named_by_its_path_from_the_kubeconfig(tmp_path: Path) -> None:
    api_version = "client.authentication.k8s.io/v1"
    program = tmp_path / "bin" / "make-token"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$ANSWER"\n')
    program.chmod(0o755)
    answer = f'{{"apiVersion": "{api_version}", "kind": "ExecCredential", "status": {{"token": "made"}}}}'
    plugin = {"apiVersion": api_version, "command": "./bin/make-token", "env": [{"name": "ANSWER", "value": answer}]}
    user: dict[str, object] = {"exec": plugin}
    async with serve_api(token="made") as server:
        path = write_kubeconfig(tmp_path / "config", server.url, user)
        assert await read(await load_credentials(environ={}, kubeconfig=path)) == "default"


async def test_a_token_of_a_program_that_is_refused_is_made_again_however_long_it_should_last(tmp_path: Path) -> None:
    made, runs = tmp_path / "made", tmp_path / "runs"
    script = f"echo >> {runs}; cat {made}"
    user: dict[str, object] = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script]}
    }

    def make(token: str) -> None:
        status = f'{{"token": "{token}", "expirationTimestamp": "2999-01-01T00:00:00Z"}}'
        kind = '"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"'
        made.write_text(f'{{{kind}, "status": {status}}}')

    make("first")
    async with serve_api(token="first") as server:
        path = write_kubeconfig(tmp_path / "config", server.url, user)
        credentials = await load_credentials(environ={}, kubeconfig=path, clock=itertools.count(step=61.0).__next__)
        assert await read(credentials) == "default"
        make("second")
        assert await read(credentials) == "default", "the first is still in use"
        server.token = "second"
        async with KubeClient(credentials) as client:  # this node's clock may be behind the server's
            await asyncio.gather(*(client.get(NAMESPACES, "default") for _ in range(9)))
        assert runs.read_text() == "\n\n", "once for all requests that were refused"


async def test_a_request_ends_though_a_program_makes_ever_new_tokens_that_are_refused(tmp_path: Path) -> None:
    answer = '{"apiVersion": "v1", "status": {"token": "\'$$\'"}}'
    plugin = {"apiVersion": "v1", "command": "sh", "args": ["-c", f"echo '{answer}'"]}
    async with serve_api(token="another") as server:
        path = write_kubeconfig(tmp_path / "config", server.url, {"exec": plugin})
        with pytest.raises(KubeError, match="401 Unauthorized"):
            await read(await load_credentials(environ={}, kubeconfig=path))


async def test_a_program_may_give_a_certificate_which_is_replaced_when_it_expires(
    tmp_path: Path, authority: Authority
) -> None:
    made, now = tmp_path / "made", 0.0
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "cat", "args": [str(made)]}

    def make(issuer: Authority) -> None:
        pem = issuer.client.read_text()
        status = {"clientCertificateData": pem, "clientKeyData": pem, "expirationTimestamp": "2000-01-01T00:00:00Z"}
        made.write_text(json.dumps({**plugin, "status": status}))

    def count_files() -> int:
        return sum("pydra-" in os.path.realpath(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd"))

    make(Authority(tmp_path / "outdated"))
    authority.require_clients()
    async with serve_api(tls=authority.context) as server:
        cluster = {"certificate-authority": str(authority.ca)}
        path = write_kubeconfig(tmp_path / "config", server.url, {"exec": plugin}, **cluster)
        credentials = await load_credentials(environ={}, kubeconfig=path, clock=lambda: now)
        with pytest.raises(Unavailable):
            await read(credentials)
        before = count_files()
        make(authority)
        now = 3600.0
        assert await read(credentials) == "default"
        assert count_files() == before > 0, "those of the former certificate are closed"


@pytest.mark.parametrize("rest", ["wait", "exit 0"], ids=["itself", "a child that holds its output open"])
async def test_a_program_for_the_token_that_hangs_is_killed_with_its_children(tmp_path: Path, rest: str) -> None:
    pids = tmp_path / "pids"
    script = f"sleep 600 & echo $$ $! > {pids}; {rest}"
    user: dict[str, object] = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script]}
    }
    path = write_kubeconfig(tmp_path / "config", "http://127.0.0.1:1", user)
    with pytest.raises(SettingsError, match=r"exec: sh timed out after 1 s, and was killed"):
        await load_credentials(environ={}, kubeconfig=path, deadline=1.0)
    with anyio.fail_after(30):
        while any(is_running(int(pid)) for pid in pids.read_text().split()):
            await anyio.sleep(0.01)


async def test_of_what_a_program_for_the_token_writes_without_end_only_the_beginning_is_kept(tmp_path: Path) -> None:
    user: dict[str, object] = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "head", "args": ["-c", "64M", "/dev/zero"]}
    }
    path = write_kubeconfig(tmp_path / "config", "http://127.0.0.1:1", user)
    tracemalloc.start()
    try:
        with pytest.raises(SettingsError, match="exec: head did not answer with an ExecCredential"):
            await load_credentials(environ={}, kubeconfig=path)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


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
        assert await read(credentials) == "default", "also after it was loaded again"
        assert list((tmp_path / "shared").iterdir()) == [], "a process that is killed leaves no key behind"


async def test_a_home_directory_with_a_kubeconfig_is_the_last_resort(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    write_kubeconfig(tmp_path / ".kube" / "config", "http://127.0.0.1:1/", {})
    credentials = await load_credentials(environ={"HOME": str(tmp_path)})
    assert (credentials.server, credentials.access.headers) == ("http://127.0.0.1:1", {})


async def test_without_any_credentials_it_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"KUBERNETES_SERVICE_HOST is not set.*\.kube/config does not exist"):
        await load_credentials(environ={"HOME": str(tmp_path)})


def _of_one_context(cluster: str, user: str = "{}") -> str:
    return (
        f"clusters: [{{name: c, cluster: {cluster}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n"
        f"users: [{{name: u, user: {user}}}]\ncurrent-context: x"
    )


def _of_program(plugin: str) -> str:
    return _of_one_context("{server: 'https://x'}", f"{{exec: {{{plugin}}}}}")


UNUSABLE = {
    "no such file": (None, "there is no file"),
    "empty": ("", "not a usable kubeconfig"),
    "not YAML": ("{", "while parsing"),
    "a list": ("[]", "not a usable kubeconfig"),
    "no current context": (_of_one_context("{server: 'https://x'}").partition("current")[0], "key current-context"),
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
    "a server whose port is none": (
        _of_one_context("{server: 'https://x:6443a'}"),
        "the server 'https://x:6443a' is not the URL of a host",
    ),
    "a proxy whose port is none": (
        _of_one_context("{server: 'https://x', proxy-url: 'http://me:secret@p:99999'}"),
        "the proxy 'http://p:99999' is not the URL of a host: Port out of range",
    ),
    "a proxy without a host": (
        _of_one_context("{server: 'https://x', proxy-url: 'http://'}"),
        "the proxy 'http://' names no host",
    ),
    "impersonation": (
        _of_one_context("{server: 'https://x'}", "{token: t, as: somebody}"),
        "as: impersonation is not supported",
    ),
    "a certificate that is none": (
        _of_one_context("{server: 'https://x'}", "{client-certificate-data: aGVsbG8=, client-key-data: aGVsbG8=}"),
        "the client certificate in the kubeconfig with the key in the kubeconfig cannot be used: it is not PEM",
    ),
    "an authority that is none": (
        _of_one_context("{server: 'https://x', certificate-authority-data: aGVsbG8=}"),
        "the CA in the kubeconfig is not a usable certificate",
    ),
    "a program of no version": (_of_program("command: echo"), "exec: apiVersion is missing"),
    "a program that is not there": (_of_program("apiVersion: v1, command: /absent"), "No such file"),
    "a program that fails": (
        _of_program("apiVersion: v1, command: sh, args: [-c, 'echo log in first >&2; exit 3']"),
        "exec: sh ended with 3: log in first",
    ),
    "a program of another version": (
        _of_program("""apiVersion: v1, command: echo, args: ['{"apiVersion": "v2"}']"""),
        "exec: echo answered in v2, not v1",
    ),
    "a program that answers something else": (
        _of_program("apiVersion: v1, command: echo, args: ['[]']"),
        "exec: echo did not answer with an ExecCredential that has a status",
    ),
    "a program that gives nothing": (
        _of_program("""apiVersion: v1, command: echo, args: ['{"apiVersion": "v1", "status": {}}']"""),
        "exec: the plugin gave neither a token nor a certificate with its key",
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
