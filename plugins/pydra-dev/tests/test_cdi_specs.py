"""Reading CDI specs as a runtime does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pydra_dev.container_runtime.cdi_specs import minimum_version, parse_spec, read_registry


def document(device: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    edits = {"env": ["A=1"]} if device is None else device
    return {
        "cdiVersion": "1.1.0",
        "kind": "vendor.com/class",
        "devices": [{"name": "d0", "containerEdits": edits}],
        **fields,
    }


def parse(content: dict[str, Any]) -> Any:
    return parse_spec(msgspec.json.encode(content), "s.json")


def put(directory: Path, name: str, content: dict[str, Any]) -> str:
    directory.mkdir(exist_ok=True)
    (directory / name).write_bytes(msgspec.json.encode(content))
    return str(directory / name)


def test_yaml_is_read_as_json_is() -> None:
    text = b"---\ncdiVersion: 1.1.0\nkind: vendor.com/class\ndevices: [{name: d0, containerEdits: {env: [A=1]}}]\n"
    assert parse_spec(text, "s.yaml") == parse(document())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (document(surprise=1), "surprise"),
        (document({"enviroment": ["A=1"]}), "enviroment"),
        (document({}), "empty edits"),
        (document(devices=[]), "length >= 1"),
        (document(kind="class"), "is not a kind"),
        (document(kind="1.com/class"), "is not a kind"),
        (document(cdiVersion="9.9.9"), "unknown cdiVersion"),
        (document({"env": ["=1"]}), "env"),
        (document({"deviceNodes": [{"path": ""}]}), "path"),
        (document({"deviceNodes": [{"path": "/d", "type": "x"}]}), "type"),
        (document({"deviceNodes": [{"path": "/d", "permissions": "x"}]}), "permissions"),
        (document({"hooks": [{"hookName": "sometime", "path": "/h"}]}), "hookName"),
        (document({"hooks": [{"hookName": "prestart", "path": "/h", "timeout": 0}]}), "timeout"),
        (document({"mounts": [{"hostPath": "/a"}]}), "containerPath"),
        (document({"intelRdt": {"enableCMT": True}}), "enableCMT"),
        (document(devices=[{"name": "-d", "containerEdits": {"env": ["A=1"]}}]), "name"),
        (document(devices=[{"name": "d", "containerEdits": {"env": ["A=1"]}}] * 2), "differ"),
        (
            document({"mounts": [{"hostPath": "/a", "containerPath": "/b", "type": "bind"}]}, cdiVersion="0.3.0"),
            "0.4.0",
        ),
    ],
)
def test_what_the_specification_does_not_have_is_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.DecodeError, match=message):
        parse(content)


@pytest.mark.parametrize(
    ("content", "version"),
    [
        (document(), "0.3.0"),
        (document({"mounts": [{"hostPath": "/a", "containerPath": "/b", "type": "bind"}]}), "0.4.0"),
        (document({"deviceNodes": [{"path": "/d", "hostPath": "/e"}]}), "0.5.0"),
        (document(devices=[{"name": "0d", "containerEdits": {"env": ["A=1"]}}]), "0.5.0"),
        (document(kind="vendor.com/my.class"), "0.6.0"),
        (document(annotations={"a": "b"}), "0.6.0"),
        (document({"additionalGids": [1]}), "0.7.0"),
        (document({"intelRdt": {"closID": "a"}}), "0.7.0"),
        (document({"netDevices": [{"hostInterfaceName": "e", "name": "n"}]}), "1.1.0"),
        (document({"intelRdt": {"schemata": ["MB:0=1"]}}), "1.1.0"),
    ],
)
def test_the_version_that_a_spec_needs_follows_from_its_contents(content: dict[str, Any], version: str) -> None:
    assert minimum_version(parse(content)) == version


def test_a_broken_file_disables_itself_and_no_other(tmp_path: Path) -> None:
    put(tmp_path, "good.json", document())
    bad = put(tmp_path, "bad.json", document({}))
    found = read_registry([str(tmp_path)])
    assert set(found.devices) == {"vendor.com/class=d0"}
    assert set(found.errors) == {bad}


def test_other_suffixes_and_subdirectories_are_not_read(tmp_path: Path) -> None:
    put(tmp_path, "spec.123.tmp", document())
    put(tmp_path / "below", "s.json", document())
    assert read_registry([str(tmp_path)]).devices == {}


def test_a_directory_that_is_missing_has_nothing(tmp_path: Path) -> None:
    found = read_registry([str(tmp_path / "missing")])
    assert (found.devices, found.errors) == ({}, {})


def test_the_later_directory_wins(tmp_path: Path) -> None:
    put(tmp_path / "etc", "s.json", document())
    winner = put(tmp_path / "run", "s.json", document())
    found = read_registry([str(tmp_path / "etc"), str(tmp_path / "run")])
    assert found.devices["vendor.com/class=d0"].file == winner
    assert found.errors == {}


def test_a_device_twice_in_one_directory_is_nobodys_and_both_files_are_blamed(tmp_path: Path) -> None:
    files = {put(tmp_path, name, document()) for name in ("a.json", "b.json")}
    found = read_registry([str(tmp_path)])
    assert found.devices == {}
    assert set(found.errors) == files
