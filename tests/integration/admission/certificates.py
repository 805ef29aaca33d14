"""Certificates for tests, and directories that are replaced as the kubelet replaces a Secret's."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

_CURVE = ec.SECP256R1()
_AUTHORITY_USAGE = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    crl_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)
"""Python 3.13 wants a chain that keeps all of RFC 5280."""


class Pair(msgspec.Struct, frozen=True):
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs certificates for 127.0.0.1; `pem` is what its clients trust."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(_CURVE)
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test's own authority")])
        now = datetime.datetime.now(datetime.UTC)
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=365))
            .not_valid_after(now + datetime.timedelta(days=365))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_AUTHORITY_USAGE, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = self._certificate.public_bytes(Encoding.PEM)

    def issue(
        self,
        *,
        name: str = "webhook.example.com",
        address: str = "127.0.0.1",
        days: tuple[float, float] = (-1, 30),
        usage: ObjectIdentifier = ExtendedKeyUsageOID.SERVER_AUTH,
        is_rsa: bool = False,
    ) -> Pair:
        """A certificate that is valid from and until so many days from now."""
        key = rsa.generate_private_key(65537, 2048) if is_rsa else ec.generate_private_key(_CURVE)
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + datetime.timedelta(days=days[0]))
            .not_valid_after(now + datetime.timedelta(days=days[1]))
            .add_extension(
                x509.SubjectAlternativeName([x509.DNSName(name), x509.IPAddress(ipaddress.ip_address(address))]),
                critical=True,
            )
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return Pair(certificate.public_bytes(Encoding.PEM) + self.pem, pem)


class SecretMount:
    """A directory with tls.crt and tls.key, both links through `..data`, which is replaced as a whole."""

    def __init__(self, directory: Path, pair: Pair) -> None:
        self._directory = directory
        self._version = 0
        directory.mkdir(parents=True, exist_ok=True)
        self.certificate, self.key = str(directory / "tls.crt"), str(directory / "tls.key")
        self.replace(pair)
        for name in ("tls.crt", "tls.key"):
            (directory / name).symlink_to(f"..data/{name}")

    def replace(self, pair: Pair) -> None:
        """As the kubelet does it: another directory, and a link to it that takes the place of the former one."""
        self._version += 1
        version = self._directory / f"..{self._version}"
        version.mkdir()
        (version / "tls.crt").write_bytes(pair.certificate)
        (version / "tls.key").write_bytes(pair.key)
        link = self._directory / "..data_tmp"
        link.symlink_to(version.name)
        os.replace(link, self._directory / "..data")
