"""Which proxy leads to a server: https://pkg.go.dev/golang.org/x/net/http/httpproxy has the rules."""

from __future__ import annotations

import pytest

from pydra.kube.credentials import find_proxy

PROXY = "http://proxy.example.com:3128"


@pytest.mark.parametrize(
    ("server", "environ", "proxy"),
    [
        ("https://10.96.0.1:443", {}, None),
        ("https://10.96.0.1:443", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://10.96.0.1:443", {"https_proxy": PROXY}, PROXY),
        ("https://10.96.0.1:443", {"HTTPS_PROXY": "proxy.example.com:3128"}, PROXY),
        ("https://10.96.0.1:443", {"HTTP_PROXY": PROXY}, None),
        ("http://10.96.0.1", {"HTTP_PROXY": PROXY}, PROXY),
        ("https://[fd00::1]:443", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": PROXY}, None),
        ("https://[::1]:6443", {"HTTPS_PROXY": PROXY}, None),
        ("https://localhost:6443", {"HTTPS_PROXY": PROXY}, None),
    ],
)
def test_the_variable_of_the_servers_scheme_names_its_proxy(
    server: str, environ: dict[str, str], proxy: str | None
) -> None:
    assert find_proxy(server, environ) == proxy


@pytest.mark.parametrize(
    ("server", "listed", "is_direct"),
    [
        ("https://10.96.0.1", "10.96.0.1", True),
        ("https://10.96.0.1", "10.96.0.2", False),
        ("https://10.96.0.1", "example.com, 10.96.0.0/12", True),
        ("https://10.96.0.1", "fd00::/8", False),
        ("https://[fd00::1]", "fd00::/8", True),
        ("https://[fd00::1]", "fd00::1", True),
        ("https://[fd00::1]:443", "[fd00::1]:443", True),
        ("https://[fd00::1]:443", "[fd00::1]:6443", False),
        ("https://10.96.0.1", "*", True),
        ("https://10.96.0.1", "", False),
        ("https://10.96.0.1", ",,", False),
        ("https://10.96.0.1", "example.com:https,10.96.0.1", True),
        ("https://10.96.0.1", "6.0.1", False),
        ("https://10.96.0.1:6443", "10.96.0.1:443", False),
        ("https://10.96.0.1:443", "10.96.0.1:443", True),
        ("https://10.96.0.1", "10.96.0.1:443", True),
        ("https://api.example.com", "example.com", True),
        ("https://api.example.com", "Example.com", True),
        ("https://example.com", "example.com", True),
        ("https://example.com", ".example.com", False),
        ("https://api.example.com", ".example.com", True),
        ("https://api.example.com", "*.example.com", True),
        ("https://myexample.com", "example.com", False),
        ("https://api.example.com:6443", "example.com:443", False),
    ],
)
def test_no_proxy_lists_what_is_reached_without_one(server: str, listed: str, is_direct: bool) -> None:
    found = find_proxy(server, {"HTTPS_PROXY": PROXY, "NO_PROXY": listed})
    assert found == (None if is_direct else PROXY)
