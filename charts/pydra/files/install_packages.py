"""The init container of `packages`: what pip installs comes beside what the image has, and never instead of it.

Standard library only. Its arguments are a folder, which it empties, and pip's. Whatever runs with START in PYTHONPATH
finds the packages after all that the image has.
"""

import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

START = "start"
"""In the folder: what Python imports when it starts, wherever the image's Python looks for packages."""
PIP = ("-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check")
PLACES = ("lib*/python*/*-packages", "local/lib*/python*/*-packages")
"""Where Pythons, and Debian's, install below a prefix."""


def main():
    """Install, and say where; pip's own words are enough when it fails."""
    folder = Path(sys.argv[1])
    for old in folder.iterdir():  # of the pod's sandbox before this one
        shutil.rmtree(old)
    # --prefix, unlike --target, takes for installed what the image has; the constraints keep it as it is.
    command = [sys.executable, *PIP, "--prefix", folder, "--constraint", write_constraints(), *sys.argv[2:]]
    if failed := subprocess.run(command, check=False).returncode:  # noqa: S603
        return failed
    places = sorted(str(place) for pattern in PLACES for place in folder.glob(pattern))
    start = folder / START
    start.mkdir()
    (start / "sitecustomize.py").write_text(f"import site\n\nfor place in {places!r}:\n    site.addsitedir(place)\n")
    return 0


def write_constraints():
    """A file for pip with what the image has."""
    have = {f"{one.name}=={one.version}\n" for one in metadata.distributions() if one.name and one.version}
    with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
        file.writelines(sorted(have))
    return file.name


if __name__ == "__main__":
    sys.exit(main())
