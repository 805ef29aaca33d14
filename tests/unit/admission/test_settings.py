"""The webhook's settings: from flags, variables and the file, by the rules of the agent's."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec
import pytest

from pydra.cli.options import WEBHOOK, add_options, flag_of, read_values, variable_of
from pydra.errors import SettingsError
from pydra.settings import WebhookSettings, parse_webhook_settings


def read(*flags: str, **environ: str) -> WebhookSettings:
    parser = argparse.ArgumentParser(prog="pydra webhook")
    add_options(parser, WEBHOOK)
    return parse_webhook_settings(read_values(parser.parse_args(flags), environ, WEBHOOK))


def test_every_setting_has_an_option_and_every_option_a_setting() -> None:
    fields = {one.name for one in msgspec.structs.fields(WebhookSettings)}
    assert {one.field for one in WEBHOOK.options} == fields - {"backend_settings"}, "which only the file has"


def test_every_option_says_what_it_does_in_the_help() -> None:
    parser = argparse.ArgumentParser(prog="pydra webhook")
    add_options(parser, WEBHOOK)
    text = " ".join(parser.format_help().split())
    for option in WEBHOOK.options:
        assert flag_of(option) in text
        assert option.help in text


def test_flags_and_variables_are_named_by_one_rule() -> None:
    assert [variable_of(one, WEBHOOK) for one in WEBHOOK.options][:5] == [
        "PYDRA_WEBHOOK_BACKEND",
        "PYDRA_WEBHOOK_DRIVER",
        "PYDRA_WEBHOOK_ADDRESS",
        "PYDRA_WEBHOOK_TLS_CERT",
        "PYDRA_WEBHOOK_TLS_KEY",
    ]


def test_the_least_to_say_is_a_backend() -> None:
    settings = read("--backend", "sim")
    assert (settings.backends, settings.endpoint, settings.http_endpoint) == (("sim",), ("0.0.0.0", 8443), None)


def test_variables_and_flags_add_up() -> None:
    settings = read(
        *("--driver", "sim=a.b", "--tls-cert", "/tls/tls.crt", "--drain-grace", "0"),
        PYDRA_WEBHOOK_BACKEND="sim,nvidia",
        PYDRA_WEBHOOK_TLS_KEY="/tls/tls.key",
        PYDRA_WEBHOOK_ADDRESS="[::1]:443",
        PYDRA_SIM_STATE="/var/elsewhere",
        PYDRA_NODE_NAME="the agent's",
    )
    assert settings.backends == ("sim", "nvidia")
    assert settings.drivers == {"sim": "a.b"}
    assert settings.endpoint == ("::1", 443)
    assert (settings.tls_cert, settings.tls_key, settings.drain_grace) == ("/tls/tls.crt", "/tls/tls.key", 0)


SERVICE = {
    "PYDRA_WEBHOOK_SERVICE_HOST": "10.0.0.1",
    "PYDRA_WEBHOOK_SERVICE_PORT": "443",
    "PYDRA_WEBHOOK_SERVICE_PORT_HTTPS": "443",
    "PYDRA_WEBHOOK_PORT": "tcp://10.0.0.1:443",
    "PYDRA_WEBHOOK_PORT_443_TCP": "tcp://10.0.0.1:443",
    "PYDRA_WEBHOOK_PORT_443_TCP_ADDR": "10.0.0.1",
}


def test_variables_of_a_service_of_that_name_are_none_of_ours() -> None:
    assert read("--backend", "sim", **SERVICE).backends == ("sim",)


def test_the_agent_beside_the_service_starts_too() -> None:
    parser = argparse.ArgumentParser(prog="pydra-agent")
    add_options(parser)
    assert read_values(parser.parse_args(["--backend", "sim"]), SERVICE) == {"backends": ["sim"]}


@pytest.mark.parametrize(
    ("flags", "environ", "problem"),
    [
        ((), {}, "backends: must name at least one backend, as in --backend sim"),
        (("--address", "8443"), {}, "address: '8443' is not HOST:PORT"),
        (("--http-address", "x:y"), {}, "httpAddress: 'x:y' is not HOST:PORT; leave it empty for none"),
        (
            ("--tls-cert", "/a"),
            {},
            "tlsKey: missing, tlsCert is given; both are needed, or neither to speak plain HTTP",
        ),
        (("--tls-key", "a"), {}, "tlsKey: must be an absolute path (found 'a')"),
        (("--tls-period", "0"), {}, "tlsPeriod: must be a number of seconds > 0.0 (found '0')"),
        (("--driver", "gpu=a.b"), {}, "drivers: 'gpu' is not among the backends sim"),
        ((), {"PYDRA_WEBHOOK_PORT": "1"}, "PYDRA_WEBHOOK_PORT: no such variable; see pydra webhook --help"),
        (
            (),
            {"PYDRA_WEBHOOK_TLSKEY": "1"},
            'PYDRA_WEBHOOK_TLSKEY: no such variable (did you mean "PYDRA_WEBHOOK_TLS_KEY"?); see pydra webhook --help',
        ),
        (("--log-level", "loud"), {}, "logLevel: must be one of debug, info, warning, error (found 'loud')"),
    ],
    ids=str,
)
def test_what_is_wrong_is_reported_with_what_to_do(
    flags: tuple[str, ...], environ: dict[str, Any], problem: str
) -> None:
    backend = () if problem.startswith("backends") else ("--backend", "sim")
    with pytest.raises(SettingsError) as caught:
        read(*backend, *flags, **environ)
    assert caught.value.problems == (problem,)
