"""A new plugin: what `pydra new` writes works at once, whatever the name, and overwrites nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

import pydra
from pydra.backends.discovery import list_backends
from pydra.cli.tool import main
from pydra.errors import SettingsError
from pydra_dev.new import FEATURES, OWN, TEMPLATE, write_plugin

RUFF = shutil.which("ruff", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])) or "ruff"


def run(*command: str, where: Path) -> str:
    """What a command printed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYDRA_")}
    done = subprocess.run(command, cwd=where, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("flags", "passed"),
    [((), 2), (("--with", "config, health,partitions"), 5)],
    ids=["minimal", "all features"],
)
def test_a_new_plugin_runs_and_passes_its_own_checks_at_once(
    flags: tuple[str, ...],
    passed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Installing one is a step of the tutorial, which a test follows."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", "acme-npu", *flags]) == 0
    end = "try it: cd pydra-acme-npu && pip install -e . && pydra dev --backend acme-npu\n"
    assert capsys.readouterr().out.endswith(end)
    plugin = tmp_path / "pydra-acme-npu"
    tests = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", where=plugin)
    assert f"{passed} passed" in tests
    if flags:  # mypy checks the minimal one as it is in the repository, and a tutorial runs one
        command = (sys.executable, "-m", "pydra", "dev", "--backend", "pydra_acme_npu:", "-f", "manifests", "--once")
        assert "ACME_NPU_0_SLOTS_0_1_MHZ=300" in run(*command, where=plugin)
        run(sys.executable, "-m", "mypy", "--cache-dir", os.devnull, where=plugin)


@pytest.mark.parametrize("name", ["a", "npu", "a-name-of-20-letters"])
def test_what_is_written_passes_the_linter_with_every_name_and_feature(name: str, tmp_path: Path) -> None:
    for count in range(len(FEATURES) + 1):
        for features in combinations(FEATURES, count):
            write_plugin(name, str(tmp_path / "-".join(["with", *features])), features)
    run(RUFF, "check", "--no-cache", ".", where=tmp_path)
    run(RUFF, "format", "--no-cache", "--check", ".", where=tmp_path)
    texts = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert not re.search("fpga|# with|# end", "".join(texts), re.IGNORECASE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("NPU",), "'NPU' is not a name for a backend; it must be at most 20 lower-case letters"),
        (("sim",), "the name sim is taken: pydra-sim provides it; choose another"),
        (("dev",), "the name dev is taken: pydra itself has a package of this name; choose another"),
        (("npu", "--with", "config,helth"), "--with: 'helth' must be one of partitions, config, health (did you mean"),
        (("npu", "--directory", "full"), "full is there already; name another directory, or one that is empty"),
        (("npu", "--directory", "full/file/x"), "cannot be written: Not a directory"),
    ],
)
def test_what_cannot_be_written_is_told(
    arguments: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert main(["new", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert [one.name for one in tmp_path.rglob("*")] == ["full", "file"]


def test_a_module_that_is_installed_is_not_shadowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pydra_mine.py").touch()
    with pytest.raises(SettingsError, match="the name mine is taken: the module pydra_mine is"):
        write_plugin("mine", str(tmp_path / "new"))


def test_pydras_own_names_are_taken_where_they_are_not_installed() -> None:
    plugins = {path.name.removeprefix("pydra-") for path in Path(__file__).parents[2].glob("pydra-*")}
    own = {one.name for one in list_backends() if one.distribution.removeprefix("pydra-") in plugins}
    assert set(OWN) == plugins | own


def test_the_image_of_a_new_plugin_is_based_on_this_version() -> None:
    assert f"/pydra:{pydra.__version__}\n" in (TEMPLATE / "Dockerfile").read_text()
