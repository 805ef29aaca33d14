"""Bodies in Kubernetes' protobuf, as far as `kubectl create` sends them for the kinds that are served.

Source: apimachinery, pkg/runtime/serializer/protobuf and pkg/apis/meta/v1/generated.proto. Other kinds carry their
objects as JSON: `kubectl apply` and everything that reads a file.
"""

from __future__ import annotations

from dataclasses import dataclass

import betterproto2

from pydra_dev.api.errors import JsonObject, bad_request
from pydra_dev.api.kinds import NAMESPACES, SERVICE_ACCOUNTS

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"


@dataclass(eq=False, repr=False)
class TypeMeta(betterproto2.Message):
    """What kind of object it is."""

    api_version: str = betterproto2.field(1, betterproto2.TYPE_STRING)
    kind: str = betterproto2.field(2, betterproto2.TYPE_STRING)


@dataclass(eq=False, repr=False)
class Unknown(betterproto2.Message):
    """The envelope of an object."""

    type_meta: TypeMeta | None = betterproto2.field(1, betterproto2.TYPE_MESSAGE, optional=True)  # noqa: RUF009
    raw: bytes = betterproto2.field(2, betterproto2.TYPE_BYTES)


@dataclass(eq=False, repr=False)
class ObjectMeta(betterproto2.Message):
    """What a client sets of the metadata."""

    name: str = betterproto2.field(1, betterproto2.TYPE_STRING)
    generate_name: str = betterproto2.field(2, betterproto2.TYPE_STRING)
    namespace: str = betterproto2.field(3, betterproto2.TYPE_STRING)
    labels: dict[str, str] = betterproto2.field(  # noqa: RUF009
        11, betterproto2.TYPE_MAP, map_meta=betterproto2.map_meta(betterproto2.TYPE_STRING, betterproto2.TYPE_STRING)
    )
    annotations: dict[str, str] = betterproto2.field(  # noqa: RUF009
        12, betterproto2.TYPE_MAP, map_meta=betterproto2.map_meta(betterproto2.TYPE_STRING, betterproto2.TYPE_STRING)
    )


@dataclass(eq=False, repr=False)
class MetadataOnly(betterproto2.Message):
    """An object of which nothing but the metadata matters here."""

    metadata: ObjectMeta | None = betterproto2.field(1, betterproto2.TYPE_MESSAGE, optional=True)  # noqa: RUF009


def parse_object(raw: bytes) -> JsonObject:
    """The object in a request's body. Raises a 400 StatusError for what is not one, or not of these kinds."""
    try:
        envelope = Unknown.parse(raw.removeprefix(MAGIC))
        metadata = MetadataOnly.parse(envelope.raw).metadata or ObjectMeta()
    except (ValueError, EOFError) as error:
        raise bad_request(f"the object provided is unrecognized (must be of type protobuf): {error}") from error
    told = envelope.type_meta or TypeMeta()
    if told.kind not in (NAMESPACES.kind, SERVICE_ACCOUNTS.kind):
        raise bad_request(f"{told.kind} can be created here from JSON and YAML only: kubectl apply -f FILE")
    found = {
        "name": metadata.name,
        "generateName": metadata.generate_name,
        "namespace": metadata.namespace,
        "labels": metadata.labels,
        "annotations": metadata.annotations,
    }
    metadata_json = {key: value for key, value in found.items() if value}
    return {"apiVersion": told.api_version, "kind": told.kind, "metadata": metadata_json}
