"""`pydra webhook`: from arguments to WebhookSettings to a running webhook."""

from __future__ import annotations

import argparse
import os

from pydra.admission.settings import WebhookSettings, parse_webhook_settings
from pydra.cli.exits import heed_sigterm
from pydra.cli.options import BACKENDS, OBSERVE, TIMES, Option, OptionTable, add_options, read_values

SERVING = "where to listen"

WEBHOOK = OptionTable(
    (
        Option("backends", BACKENDS, "NAME", "a backend whose configs to judge; repeat it for several", "--backend"),
        Option("drivers", BACKENDS, "NAME=DRIVER", "the driver name of backend NAME, if not its own", "--driver"),
        Option("address", SERVING, "HOST:PORT", "where the API server's reviews come in, with TLS"),
        Option("tls_cert", SERVING, "FILE", "the certificate and its chain, PEM; without it plain HTTP is spoken"),
        Option("tls_key", SERVING, "FILE", "the certificate's private key, PEM, without a passphrase"),
        Option("http_address", SERVING, "HOST:PORT", "where to serve /metrics, /healthz and /readyz without TLS too"),
        Option("tls_period", TIMES, "S", "how often to look whether the certificate has changed"),
        Option("read_deadline", TIMES, "S", "how long a client may take for its handshake, and to send a review"),
        Option("drain_grace", TIMES, "S", "how long to go on after SIGTERM, until no API server comes here any more"),
        Option("log_format", OBSERVE, "FORMAT", "text, json, or auto: text on a terminal, json otherwise"),
        Option("log_level", OBSERVE, "LEVEL", "debug, info, warning or error; reread on SIGHUP"),
    ),
    WebhookSettings,
    "PYDRA_WEBHOOK_",
    "pydra webhook",
)

_EPILOG = """\
Every option can also be given as a variable (--tls-cert as PYDRA_WEBHOOK_TLS_CERT) or in the YAML file of --config
(tlsCert: ...). A flag beats a variable, a variable beats the file. SIGHUP reads log level and certificate again.

example:
  pydra webhook --backend sim --tls-cert /tls/tls.crt --tls-key /tls/tls.key
"""


def add_webhook(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand."""
    text = "refuse claims, templates and DeviceClasses whose opaque configs are wrong: a validating webhook"
    parser = commands.add_parser(
        "webhook",
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, WEBHOOK)
    parser.set_defaults(command=_run)


def _run(parsed: argparse.Namespace) -> int:
    def read() -> WebhookSettings:
        return parse_webhook_settings(read_values(parsed, os.environ, WEBHOOK))

    settings = read()
    heed_sigterm()
    from pydra.admission.webhook import run  # noqa: PLC0415 - --help and a wrong flag cost no more than reading them

    return run(settings, reread=read)
