"""Checks CDI spec files as a container runtime reads them; `pydra cdi validate`, and the CDI directory for `doctor`."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import yaml

from pydra.atomic_files import read_regular_file
from pydra.cdi.spec_validation import find_spec_problems
from pydra.cdi.store import MAX_BYTES
from pydra.diagnosis.findings import Finding, Level

SUFFIXES = (".json", ".yaml")
"""Of the files that runtimes read."""


def check_spec_file(path: str) -> Iterator[Finding]:
    """Yield what is wrong with a file, or that a runtime takes it."""
    if not path.endswith(SUFFIXES):
        found = f"the name must end in {' or '.join(SUFFIXES)}; runtimes read no other file"
        yield Finding(subject=path, level=Level.PROBLEM, found=found)
    problems = _find_problems(path)
    if not problems:
        yield Finding(subject=path, level=Level.OK, found="a valid CDI spec")
    for problem in problems:
        yield Finding(subject=path, level=Level.PROBLEM, found=problem)


def _find_problems(path: str) -> tuple[str, ...]:
    try:
        content = read_regular_file(path, MAX_BYTES)
    except OSError as error:
        return (f"cannot be read: {(error.strerror or str(error)).lower()}",)
    try:
        document = msgspec.json.decode(content) if path.endswith(".json") else yaml.safe_load(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return (f"is not JSON: {error}",)
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, RecursionError) as error:  # as for settings
        return (f"is not YAML: {' '.join(str(error).split())}",)
    return find_spec_problems(document)
