"""Every parser of the core for what others wrote gives a value or an error of its own, whatever the bytes."""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import pytest
from grpclib import GRPCError
from hypothesis import given
from hypothesis import strategies as st

from pydra.admission.review import MalformedReview, build_review, parse_review, review_object
from pydra.backends.seccomp import compile_profile, read_profile
from pydra.checkpoint.record import Record, Stage, build_record, parse_record, read_partial_record
from pydra.claim import AllocatedDevice
from pydra.claim import Claim as AllocatedClaim
from pydra.claims.gc import read_kubelet_claims
from pydra.cli.options import add_options, read_values
from pydra.diagnosis.cdi_validation import check_spec_file
from pydra.errors import CheckpointError, SettingsError
from pydra.kube.credentials import load_credentials
from pydra.kube.tolerant_decoding import NotJson, Undecodable, decode_document, decode_event, decode_object, decode_page
from pydra.kubelet.message_conversion import parse_claims
from pydra.kubelet.pb import Claim, NodePrepareResourcesRequest
from pydra.quantity import canonical_quantity, is_quantity
from pydra.settings import SeccompProfile, SeccompType, parse_settings
from tests.fuzz.damage import damage

CLAIM = {"metadata": {"name": "c", "namespace": "n", "uid": "u"}, "spec": {"devices": {"requests": [{"name": "r"}]}}}
REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "u",
        "resource": {"group": "resource.k8s.io", "version": "v1", "resource": "resourceclaims"},
        "operation": "CREATE",
        "object": {
            **CLAIM,
            "spec": {"devices": {"config": [{"opaque": {"driver": "sim.pydra.dev", "parameters": {}}}]}},
        },
    },
}
SPEC = {
    "cdiVersion": "0.6.0",
    "kind": "sim.pydra.dev/claim",
    "devices": [{"name": "u:r:d", "containerEdits": {"env": ["A=b"], "deviceNodes": [{"path": "/dev/null"}]}}],
}
KUBECONFIG = b"""
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: "https://127.0.0.1:1", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: t}}]
"""
MESSAGE = bytes(NodePrepareResourcesRequest(claims=[Claim(namespace="n", name="c", uid="u")]))
RECORD = build_record(
    Record(
        claim=AllocatedClaim(
            uid="u", namespace="n", name="c", devices=(AllocatedDevice(request="r", pool="p", device="d"),)
        ),
        driver="d.example.com",
        stage=Stage.COMPLETED,
        boot_id="b",
    )
)
CLAIMS = '{"kind":"DRACheckpoint","ClaimInfoStateList":[{"ClaimUID":"3f0c6a1e-0000-4000-8000-000000000001"}]}'
STATE = json.dumps({"Data": CLAIMS, "Checksum": zlib.crc32(CLAIMS.encode())}).encode()


def as_json(document: object) -> bytes:
    return json.dumps(document).encode()


def answer_review(body: bytes) -> None:
    question = parse_review(body)
    build_review(question, review_object(question, {}))


def read_quantity(body: bytes) -> None:
    text = body.decode(errors="replace")
    if is_quantity(text):
        assert is_quantity(canonical_quantity(text))


def read_settings(path: str) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    parse_settings(read_values(parser.parse_args(["--config", path]), {}))


def compile_seccomp_profile(path: str) -> None:
    profile = read_profile(SeccompProfile(type=SeccompType.LOCALHOST, localhost_profile=path))
    with suppress(SettingsError):  # libseccomp refuses it, or is not installed
        compile_profile(profile)


def read_kubeconfig(path: str) -> None:
    anyio.run(partial(load_credentials, environ={}, kubeconfig=path))


PARSERS: Mapping[str, tuple[Callable[[bytes], object], tuple[type[Exception], ...], bytes]] = {
    "an answer of the API server": (decode_document, (NotJson, Undecodable), as_json(CLAIM)),
    "an object of the API server": (decode_object, (NotJson, Undecodable), as_json(CLAIM)),
    "a page of a list": (decode_page, (NotJson,), as_json({"metadata": {}, "items": [CLAIM, CLAIM]})),
    "a line of a watch": (decode_event, (NotJson, Undecodable), as_json({"type": "ADDED", "object": CLAIM})),
    "a request of the kubelet": (parse_claims, (GRPCError,), MESSAGE),
    "a request to the webhook": (answer_review, (MalformedReview,), as_json(REVIEW)),
    "a record": (parse_record, (CheckpointError,), RECORD),
    "a damaged record": (partial(read_partial_record, uid="u"), (), RECORD),
    "a quantity": (read_quantity, (), b"128Gi"),
}
PROFILE = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "architectures": ["SCMP_ARCH_X86_64"],
    "syscalls": [
        {
            "names": ["personality"],
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": 38,
            "args": [{"index": 0, "op": "SCMP_CMP_MASKED_EQ", "value": 8, "valueTwo": 8}],
        }
    ],
}
FILES: Mapping[str, tuple[str, Callable[[str], object], tuple[type[Exception], ...], bytes]] = {
    "a CDI spec": ("spec.json", lambda path: list(check_spec_file(path)), (), as_json(SPEC)),
    "a CDI spec in YAML": ("spec.yaml", lambda path: list(check_spec_file(path)), (), as_json(SPEC)),
    "the kubelet's claims": ("dra_manager_state", read_kubelet_claims, (CheckpointError,), STATE),
    "the agent's settings": (
        "config.yaml",
        read_settings,
        (SettingsError,),
        b"backends: [sim]\nnodeName: n\nlogLevel: debug\n",
    ),
    "a seccomp profile": ("profile.json", compile_seccomp_profile, (SettingsError,), as_json(PROFILE)),
    "a kubeconfig": ("kubeconfig", read_kubeconfig, (SettingsError,), KUBECONFIG),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.mark.fuzz
@pytest.mark.parametrize("name", PARSERS)
@given(data=st.data())
def test_whatever_is_sent_is_read_or_refused(name: str, data: st.DataObject) -> None:
    parse, errors, sample = PARSERS[name]
    with suppress(*errors):
        parse(data.draw(damage(sample)))


@pytest.mark.fuzz
@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
def test_whatever_is_in_a_file_is_read_or_refused(name: str, directory: Path, data: st.DataObject) -> None:
    file, read, errors, sample = FILES[name]
    (directory / file).write_bytes(data.draw(damage(sample)))
    with suppress(*errors):
        read(str(directory / file))


def test_the_samples_are_valid(directory: Path) -> None:
    for parse, _, sample in PARSERS.values():
        parse(sample)
    for file, read, _, sample in FILES.values():
        (directory / file).write_bytes(sample)
        read(str(directory / file))
