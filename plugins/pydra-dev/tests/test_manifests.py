"""Which manifests `pydra dev -f` takes, and where it looks for changes."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from pydra.errors import SettingsError
from pydra_dev.api.kinds import NAMESPACES
from pydra_dev.apiserver.store import Store
from pydra_dev.apiserver.verbs import Api
from pydra_dev.command.watch_source_files import find_sources
from pydra_dev.manifests import choose_manifests, create_object, read_manifests, read_sample

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"


def test_a_directory_is_read_in_order_of_its_names_and_a_list_item_by_item(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(
        '{"kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "q"}}]}'
    )
    (tmp_path / "a.yaml").write_text(f"---\n{POD}---\n---\n{POD.replace('name: p', 'name: r')}")
    (tmp_path / "c.txt").write_text("no manifest")
    assert [one.name for one in read_manifests([str(tmp_path)])] == ["Pod p", "Pod r", "Pod q"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("a: [", "m.yaml: is not valid YAML: ", id="not YAML"),
        pytest.param("- 1", "m.yaml: is not an object with apiVersion, kind and metadata", id="a list"),
        pytest.param("kind: Pod", "m.yaml: apiVersion, metadata must be set", id="missing fields"),
        pytest.param(f"{POD}---\n{POD[:15]}", "m.yaml, document 2: kind, metadata must be set", id="second document"),
        pytest.param(POD.replace("Pod", "Pd"), 'm.yaml: kind Pd is not served (did you mean "Pod"?)', id="kind"),
        pytest.param(
            POD.replace("v1", "v2"), "m.yaml: there is no Pod in version v2; it is served in v1", id="version"
        ),
        pytest.param(POD.replace("{name: p}", "p"), "m.yaml: metadata must be an object with a name", id="metadata"),
        pytest.param("", "m.yaml: no manifest is there", id="empty"),
    ],
)
def test_a_file_that_cannot_be_applied_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_manifests([str(file)])
    (found,) = caught.value.problems
    assert found.startswith(f"{tmp_path}/{problem}")


def test_a_class_of_the_backend_takes_the_place_of_the_samples_of_the_same_name_and_is_added_to_files(
    tmp_path: Path,
) -> None:
    classes: dict[str, dict[str, object]] = {"mine.example.com": {"selectors": []}, "large.example.com": {}}
    sample = read_sample("mine", "mine.example.com", classes)
    of_backend = ["DeviceClass mine.example.com", "DeviceClass large.example.com"]
    assert [one.name for one in sample if one.body["kind"] == "DeviceClass"] == of_backend
    assert sample[0].body["spec"] == {"selectors": []}
    (tmp_path / "m.yaml").write_text(POD)
    assert [one.name for one in choose_manifests([str(tmp_path)], sample)] == [*of_backend, "Pod p"]


def test_an_object_that_the_api_server_refuses_is_named_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(POD)
    (manifest,) = read_manifests([str(tmp_path)])
    api = Api(store=Store(), minor=36, gates={}, clock=lambda: datetime.now(UTC), random=Random())
    api.create(NAMESPACES, {"metadata": {"name": "default"}})
    with pytest.raises(SettingsError) as caught:
        create_object(api, manifest)
    (found,) = caught.value.problems
    assert found == f'{tmp_path}/m.yaml: Pod "p" is invalid: spec.containers: Required value'


def test_a_backend_is_watched_where_it_is_without_importing_it(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("raise RuntimeError")
    assert find_sources(str(file)) == (str(file),)
    (package,) = find_sources("sim")
    assert package.endswith("pydra_sim")
    assert find_sources("no_such_module:") == ()
