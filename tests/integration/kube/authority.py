"""A certificate authority for the API server under test, and what it issues."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAME = "api.example.com"
"""A name in the server's certificate that only a proxy resolves."""


class Authority:
    """An authority without key identifiers, as several clouds have: `ca`, a server's and a client's certificate.

    `context` is the server's; what is loaded into it later counts for the connections that come then.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.ca = directory / "ca.crt"
        self.server, self.client = directory / "server.pem", directory / "client.pem"
        key, name = ec.generate_private_key(ec.SECP256R1()), _name("ca")
        authority = _build(name, name, key.public_key(), x509.BasicConstraints(ca=True, path_length=None))
        self.ca.write_bytes(authority.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        for file in (self.server, self.client):
            own = ec.generate_private_key(ec.SECP256R1())
            names = x509.SubjectAlternativeName(
                [*(x509.IPAddress(ipaddress.ip_address(one)) for one in ("127.0.0.1", "::1")), x509.DNSName(NAME)]
            )
            certificate = _build(_name(file.stem), name, own.public_key(), names).sign(key, hashes.SHA256())
            file.write_bytes(
                certificate.public_bytes(serialization.Encoding.PEM)
                + own.private_bytes(
                    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                )
            )
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(self.server)

    def require_clients(self) -> None:
        """Have the server refuse clients without a certificate of this authority."""
        self.context.load_verify_locations(self.ca)
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.context.verify_flags &= ~ssl.VERIFY_X509_STRICT


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


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
