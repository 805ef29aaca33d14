"""The certificate: what is served, what is not, and what happens when the files change."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from contextlib import suppress
from pathlib import Path

import aiohttp
import anyio
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from pydra.admission.tls import BadCertificate, Certificate, ServedCertificate, read_certificate, replaces
from pydra.errors import SettingsError
from tests.integration.admission.certificates import Authority, Pair, SecretMount
from tests.integration.admission.serving import connect, review, serve_webhook, trusting
from tests.unit.admission.configs import sim
from tests.unit.admission.questions import entry

RIGHT = entry("sim.pydra.dev", sim())
AUTHORITY = Authority()


class Loads:
    """What a ServedCertificate reported, and a clock of the test's own."""

    def __init__(self) -> None:
        self.seen: list[Certificate | None] = []
        self.ahead = 0.0

    def report(self, loaded: Certificate | None) -> None:
        self.seen.append(loaded)

    def clock(self) -> float:
        return time.time() + self.ahead


def serve(mount: SecretMount, loads: Loads | None = None) -> ServedCertificate:
    loads = loads or Loads()
    served = ServedCertificate(mount.certificate, mount.key, report=loads.report, clock=loads.clock)
    served.open()
    return served


async def seen_by_a_client(url: str, *, named: str | None = None, newest: ssl.TLSVersion | None = None) -> str:
    """The DNS name in the certificate that a new client gets, after its own checks; it names the server `named`."""
    host, _, port = url.removeprefix("https://").rpartition(":")
    context = trusting(AUTHORITY)
    context.maximum_version = newest or context.maximum_version
    _, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=named)
    names = dict(writer.get_extra_info("peercert")["subjectAltName"])
    writer.close()
    await writer.wait_closed()
    return str(names["DNS"])


async def test_reviews_are_answered_over_tls_1_2_or_newer(tmp_path: Path) -> None:
    served = serve(SecretMount(tmp_path, AUTHORITY.issue()))
    async with serve_webhook(tls=served.context) as webhook, connect(AUTHORITY) as session:
        assert (await review(session, webhook.url, configs=[RIGHT]))["allowed"] is True
    assert served.context.minimum_version >= ssl.TLSVersion.TLSv1_2


async def test_a_new_certificate_is_served_and_open_connections_go_on(tmp_path: Path) -> None:
    mount = SecretMount(tmp_path, AUTHORITY.issue(name="first.example.com"))
    loads = Loads()
    served = serve(mount, loads)
    async with serve_webhook(tls=served.context) as webhook, connect(AUTHORITY, limit=1) as session:
        assert (await review(session, webhook.url, configs=[RIGHT]))["allowed"] is True
        (kept,) = [one for connections in session.connector._conns.values() for one in connections]  # type: ignore[union-attr]
        mount.replace(AUTHORITY.issue(name="second.example.com"))
        await served.renew()
        assert await seen_by_a_client(webhook.url) == "second.example.com"
        assert (await review(session, webhook.url, configs=[RIGHT]))["allowed"] is True
        (still,) = [one for connections in session.connector._conns.values() for one in connections]  # type: ignore[union-attr]
        assert still[0] is kept[0]
    assert [one.names[0] for one in loads.seen if one] == ["first.example.com", "second.example.com"]


async def test_a_certificate_with_another_kind_of_key_takes_the_place_of_the_former_one(tmp_path: Path) -> None:
    """OpenSSL keeps one of each kind, and chooses between them."""
    mount = SecretMount(tmp_path, AUTHORITY.issue(name="ec.example.com"))
    served = serve(mount)
    async with serve_webhook(tls=served.context) as webhook:
        for name in ("rsa.example.com", "again.example.com"):
            mount.replace(AUTHORITY.issue(name=name, is_rsa=name.startswith("rsa")))
            await served.renew()
            for newest in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                assert await seen_by_a_client(webhook.url, newest=newest) == name
                assert await seen_by_a_client(webhook.url, named=name, newest=newest) == name


async def test_a_change_is_noticed_by_itself_while_reviews_come_in(tmp_path: Path) -> None:
    mount = SecretMount(tmp_path, AUTHORITY.issue(name="name-0.example.com"))
    served = serve(mount)
    async with serve_webhook(tls=served.context) as webhook, anyio.create_task_group() as tasks:
        tasks.start_soon(served.run, 0.01)
        for version in range(1, 6):
            mount.replace(AUTHORITY.issue(name=f"name-{version}.example.com"))
            with anyio.fail_after(20):
                while await seen_by_a_client(webhook.url) != f"name-{version}.example.com":
                    async with connect(AUTHORITY) as session:
                        assert (await review(session, webhook.url, configs=[RIGHT]))["allowed"] is True
        tasks.cancel_scope.cancel()


def other_key() -> bytes:
    return AUTHORITY.issue().key


def with_passphrase() -> bytes:
    key = load_pem_private_key(AUTHORITY.issue().key, None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))


GOOD = AUTHORITY.issue()
BAD = [
    pytest.param(
        Pair(GOOD.certificate, other_key()), "cannot be served: the key is not the certificate's", id="mismatch"
    ),
    pytest.param(Pair(b"", GOOD.key), "tls.crt has no certificate in PEM", id="empty certificate"),
    pytest.param(Pair(GOOD.certificate, b"hello"), "tls.key has no private key in PEM", id="no key"),
    pytest.param(Pair(GOOD.key, GOOD.key), "tls.crt has no certificate in PEM", id="two keys"),
    pytest.param(
        Pair(GOOD.certificate.replace(b" CERTIFICATE", b" X509 CERTIFICATE"), GOOD.key),
        "tls.crt must be labelled BEGIN CERTIFICATE; convert it with `openssl x509`",
        id="another label",
    ),
    pytest.param(Pair(GOOD.certificate[:200], GOOD.key), "cannot be served: it is damaged", id="torn"),
    pytest.param(
        Pair(GOOD.certificate + b"#" * (1 << 20), GOOD.key),
        "tls.crt has more than 1 MiB, which is not a certificate or key",
        id="much",
    ),
    pytest.param(Pair(GOOD.certificate, with_passphrase()), "tls.key has a passphrase; give one without", id="locked"),
    pytest.param(
        AUTHORITY.issue(usage=ExtendedKeyUsageOID.CLIENT_AUTH),
        "cannot be served: the certificate is not for servers (extended key usage)",
        id="for clients",
    ),
]


@pytest.mark.parametrize(("pair", "words"), BAD)
def test_a_pair_that_cannot_be_served_is_refused_at_the_start_in_words(tmp_path: Path, pair: Pair, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        serve(SecretMount(tmp_path, pair))
    (problem,) = caught.value.problems
    assert problem.startswith("tlsCert, tlsKey: ")
    assert problem.endswith(words)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadCertificate, match="nowhere cannot be read: No such file or directory"):
        read_certificate(str(tmp_path / "nowhere"), str(tmp_path / "nowhere"))


@pytest.mark.parametrize(("pair", "words"), BAD)
async def test_a_broken_one_never_takes_the_place_of_one_that_works(
    tmp_path: Path, pair: Pair, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    mount = SecretMount(tmp_path, AUTHORITY.issue(name="works.example.com"))
    loads = Loads()
    served = serve(mount, loads)
    mount.replace(pair)
    async with serve_webhook(tls=served.context) as webhook:
        await served.renew()
        assert not caplog.records, "two files that change one after the other do not fit for a moment"
        await served.renew()
        await served.renew()
        assert await seen_by_a_client(webhook.url) == "works.example.com"
        (said,) = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
        assert said.endswith(f"{words}; the former certificate is kept")
        assert loads.seen[1:] == [None]
        mount.replace(AUTHORITY.issue(name="repaired.example.com"))
        await served.renew()
        assert await seen_by_a_client(webhook.url) == "repaired.example.com"


async def test_files_that_vanish_change_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mount = SecretMount(tmp_path, AUTHORITY.issue(name="works.example.com"))
    served = serve(mount)
    (tmp_path / "..data").unlink()
    async with serve_webhook(tls=served.context) as webhook:
        await served.renew()
        await served.renew()
        assert await seen_by_a_client(webhook.url) == "works.example.com"
    assert "tls.crt cannot be read: No such file or directory; the former certificate is kept" in caplog.text


async def test_an_expired_one_is_served_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mount = SecretMount(tmp_path, AUTHORITY.issue(days=(-2, -1)))
    served = serve(mount)
    await served.renew()
    (said,) = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert said.startswith("the served certificate has expired on 20")
    assert f"the API server refuses it until {mount.certificate} and {mount.key} hold a valid one" in said
    assert served.missing() == said
    async with serve_webhook(tls=served.context) as webhook, connect(AUTHORITY) as session:
        with pytest.raises(aiohttp.ClientConnectorCertificateError, match="certificate has expired"):
            await review(session, webhook.url, configs=[RIGHT])
        mount.replace(AUTHORITY.issue(days=(-3, -2)))
        await served.renew()
        mount.replace(AUTHORITY.issue())
        await served.renew()
        assert served.missing() == ""
        assert (await review(session, webhook.url, configs=[RIGHT]))["allowed"] is True


async def test_one_that_expires_while_it_is_served_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loads = Loads()
    served = serve(SecretMount(tmp_path, AUTHORITY.issue(days=(-1, 1))), loads)
    await served.renew()
    assert not caplog.records
    loads.ahead = 2 * 86400
    await served.renew()
    await served.renew()
    (said,) = [one.getMessage() for one in caplog.records]
    assert said.startswith("the served certificate has expired on")


async def test_one_that_is_not_yet_valid_waits_until_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loads = Loads()
    mount = SecretMount(tmp_path, AUTHORITY.issue(name="now.example.com"))
    served = serve(mount, loads)
    mount.replace(AUTHORITY.issue(name="tomorrow.example.com", days=(1, 60)))
    await served.renew()
    await served.renew()
    assert served.current is not None
    assert served.current.names[0] == "now.example.com"
    assert "the certificate for tomorrow.example.com, 127.0.0.1, valid until" in caplog.text
    assert "is not valid before" in caplog.text
    loads.ahead = 2 * 86400
    await served.renew()
    assert served.current.names[0] == "tomorrow.example.com"


def at(start: float, end: float) -> Certificate:
    return Certificate(certificate=b"", key=b"", not_before=start, not_after=end, names=())


@pytest.mark.parametrize(
    ("new", "current", "wanted"),
    [
        (at(0, 1), None, True),
        (at(0, 10), at(0, 10), True),
        (at(0, 10), at(0, 1), True),
        (at(6, 10), at(0, 10), False),
        (at(0, 1), at(0, 10), False),
        (at(6, 10), at(0, 1), True),
    ],
)
def test_one_that_clients_refuse_replaces_only_another_such(
    new: Certificate, current: Certificate | None, wanted: bool
) -> None:
    assert replaces(new, current, 5.0) is wanted


def test_what_was_read_says_until_when_and_for_which_names(tmp_path: Path) -> None:
    mount = SecretMount(tmp_path, AUTHORITY.issue(name="hook.example.com", days=(-1, 30)))
    read = read_certificate(mount.certificate, mount.key)
    assert read.names == ("hook.example.com", "127.0.0.1")
    assert 30 * 86400 < read.not_after - read.not_before < 32 * 86400


async def test_connections_that_begin_no_handshake_or_do_not_finish_it_do_not_keep_reviews_out(tmp_path: Path) -> None:
    served = serve(SecretMount(tmp_path / "tls", AUTHORITY.issue()))
    async with serve_webhook(tls=served.context, read_deadline=60.0, most_connections=5) as webhook:
        for said in (b"", b"\x16\x03\x01\x00\xc8"):
            silent = []
            for _ in range(20):
                _, writer = await asyncio.open_connection("127.0.0.1", int(webhook.url.rpartition(":")[2]))
                writer.write(said)
                silent.append(writer)
            with anyio.fail_after(10):
                async with connect(AUTHORITY) as session:
                    assert (await review(session, webhook.url, configs=[RIGHT]))["allowed"] is True
            for writer in silent:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
