"""Messages to bytes and back, within the kubelet's limits; what cannot be read is the caller's error, in words."""

from __future__ import annotations

import struct
from typing import Any

from grpclib import GRPCError, Status
from grpclib.encoding.base import CodecBase

MAX_MESSAGE = 4 * 1024 * 1024
"""Bytes of one message: what grpc-go, and so the kubelet, accepts, and what pydra does."""

# What betterproto2 raises for bytes that are no such message; a string that is not UTF-8 is a ValueError.
_UNREADABLE = (ValueError, EOFError, KeyError, TypeError, AttributeError, struct.error)


class Codec(CodecBase):
    """betterproto2 messages, and no need for protobuf's own package."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        """The message's bytes.

        Raises:
            GRPCError: RESOURCE_EXHAUSTED, when the kubelet would refuse the message for its size.
        """
        data = bytes(message)
        if len(data) > MAX_MESSAGE:
            text = f"the answer has {len(data)} bytes, and the kubelet accepts {MAX_MESSAGE}"
            raise GRPCError(Status.RESOURCE_EXHAUSTED, text)
        return data

    def decode(self, data: bytes, message_type: Any) -> Any:
        """The message.

        Raises:
            GRPCError: INVALID_ARGUMENT, when the bytes are none.
        """
        try:
            return message_type.parse(data)
        except _UNREADABLE as error:
            text = f"the request is no {message_type.__name__}: {type(error).__name__}: {error}"
            raise GRPCError(Status.INVALID_ARGUMENT, text) from error
