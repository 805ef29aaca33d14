"""Whatever manifests and selectors hold, they are read or refused in words."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given

from pydra.errors import SettingsError
from pydra_dev.cel.environment import CompileError, compile_selector
from pydra_dev.manifests import read_manifests
from tests.fuzz.damage import damage

MANIFEST = b"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {}}\n"
SELECTOR = (
    b"device.driver == 'd' && device.attributes['d'].a.matches('^x+$') && device.attributes['d'].?b.orValue('') != ''"
)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("manifests") / "pod.yaml"


@pytest.mark.fuzz
@given(damage(MANIFEST))
def test_whatever_a_manifest_holds_is_read_or_refused(manifest: Path, text: bytes) -> None:
    manifest.write_bytes(text)
    with suppress(SettingsError):
        read_manifests([str(manifest)])


@pytest.mark.fuzz
@given(damage(SELECTOR))
def test_whatever_a_selector_is_it_compiles_or_is_refused(text: bytes) -> None:
    with suppress(CompileError):
        compile_selector(text.decode(errors="replace"))
