"""What the gRPC server overrides in its libraries: a newer version that calls it otherwise would ignore it silently."""

from __future__ import annotations

import logging

import grpclib.protocol
import pytest
from grpclib.config import Configuration
from h2.connection import H2Connection
from hpack import Encoder

from pydra.kubelet import grpc_server


@pytest.mark.parametrize(
    ("own", "base", "names"),
    [
        (grpc_server.Call, grpclib.protocol.Stream, ("init_stream",)),
        (grpc_server.Call, grpclib.protocol.Buffer, ("add", "eof", "unacked_size")),
        (grpc_server.Http2Connection, grpclib.protocol.Connection, ("ack", "close", "create_stream", "flush")),
        (grpc_server.Connection, grpclib.protocol.H2Protocol, ("connection_lost", "connection_made")),
        (grpc_server.Connection, grpclib.protocol.AbstractHandler, ("accept", "cancel", "close")),
    ],
)
def test_grpclib_still_has_what_the_server_overrides(own: type, base: type, names: tuple[str, ...]) -> None:
    for name in names:
        assert name in vars(own), f"{own.__name__}.{name} overrides nothing any more: remove it here"
        assert callable(getattr(base, name, None)), f"grpclib has no {base.__name__}.{name} any more"


def test_h2_and_hpack_still_have_what_the_server_overrides() -> None:
    assert isinstance(vars(H2Connection)["open_inbound_streams"], property)
    assert callable(Encoder.encode)
    assert Configuration().__for_server__() is not None
    for name in ("hpack.hpack", "hpack.table"):
        assert name in logging.Logger.manager.loggerDict, f"hpack does not log as {name} any more"
