"""What cannot be imported is said with the module that is to describe_for, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from pydra.backends.discovery import LoadError, load_object


@pytest.mark.parametrize(
    ("source", "target", "told"),
    [
        pytest.param(
            "import json\nimport vendor_sdk_of_nobody\n",
            "{name}:",
            "{name} cannot be loaded: ModuleNotFoundError: No module named 'vendor_sdk_of_nobody' ({path}:2); "
            "it needs the module vendor_sdk_of_nobody: install what provides it beside the backend",
            id="what it needs is missing",
        ),
        pytest.param(
            "def read():\n    return 1 / 0\n\nread()\n",
            "{name}:",
            "{name} cannot be loaded: ZeroDivisionError: division by zero ({path}:2)",
            id="its code fails",
        ),
        pytest.param(
            "x = (\n",
            "{name}:",
            "{name} cannot be loaded: SyntaxError: '(' was never closed ({name}.py, line 1)",
            id="it is no Python",
        ),
        pytest.param(
            "",
            "{name}:backend",
            "{name}:backend cannot be loaded: {name} has no backend; correct what names it, such as the entry point in "
            "the group pydra.backends",
            id="no such object",
        ),
        pytest.param(
            "",
            "{name}.inner:",
            "there is no module {name}.inner on the module path; is it installed, or in PYTHONPATH?",
            id="no such module",
        ),
        pytest.param(
            "",
            "{name}s:",
            'there is no module {name}s on the module path (did you mean "{name}"?); correct what names it, such as '
            "the entry point in the group pydra.backends",
            id="a misspelt module",
        ),
    ],
)
def test_what_cannot_be_loaded_names_the_module_and_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, source: str, target: str, told: str
) -> None:
    name = f"half_made_{abs(hash(request.node.callspec.id))}"
    path = tmp_path / f"{name}.py"
    path.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LoadError) as caught:
        load_object(target.format(name=name))
    assert str(caught.value) == told.format(name=name, path=path)
