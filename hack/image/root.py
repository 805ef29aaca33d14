"""The root directory of an image: Python and the libraries it needs out of a Debian system, and nothing else of that.

No shell, no package manager. Scanners find the packages that the libraries are from in /var/lib/dpkg/status.d, their
licences are in /usr/share/doc. Every file belongs to root, can be written by nobody else, and has the time of
SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import compileall
import fnmatch
import os
import py_compile
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

ALWAYS = ("base-files", "ca-certificates", "coreutils", "libc6", "libgcc-s1", "libseccomp2", "libstdc++6")
"""Debian packages, beside those that Python's libraries are from: vendors' libraries need those of C and C++, the agent
compiles seccomp profiles."""
FILES = (
    "/etc/debian_version",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/os-release",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/openssl.cnf",
    "/usr/lib/os-release",
    "/usr/lib/ssl/cert.pem",
    "/usr/lib/ssl/certs",
    "/usr/lib/ssl/openssl.cnf",
    "/usr/sbin/chroot",  # backends run the node's own programs in the node's root
)
TEXTS = {
    "/etc/passwd": "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n",
    "/etc/group": "root:x:0:\nnonroot:x:65532:\n",
    "/etc/nsswitch.conf": "hosts: files dns\n",
}
_TERMINALS = ("readline.*.so", "_curses*.so", "_dbm*.so", "_gdbm*.so")
UNUSED = ("__pycache__", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages")
UNUSED_PATTERNS = ("config-*", "_tkinter*", "_test*", "_xxtestfuzz*", "_ctypes_test*", "xxlimited*", *_TERMINALS)
DPKG = Path("/var/lib/dpkg")


def lay_system(root: Path) -> None:
    """Python with pip, and the files of the system that do not follow from what is installed later."""
    if not (DPKG / "status").exists():
        sys.exit("the base image must be a Debian with Python in a prefix of its own, such as docker.io/library/python")
    for name in ("tmp", "run", "var"):
        (root / name).mkdir(parents=True)
    (root / "var" / "run").symlink_to("/run")
    for name in ("lib", "lib64", "bin", "sbin"):  # links into /usr
        if Path("/", name).is_symlink():
            (root / name).symlink_to(os.readlink(f"/{name}"))
            (root / "usr" / name).mkdir(parents=True)
    _copy_python(root)
    for name in FILES:
        _copy(Path(name), root)
    for name, text in TEXTS.items():
        _inside(root, Path(name)).write_text(text)
    _copy_libraries(root, ALWAYS)


def finish(root: Path) -> None:
    """Libraries for what has been installed, bytecode, and the state of every file that two builds agree on."""
    root.mkdir(parents=True, exist_ok=True)
    _copy_libraries(root)
    if (root / "etc" / "ld.so.conf").exists():
        subprocess.run(["ldconfig", "-r", root], check=True)
        shutil.rmtree(root / "var" / "cache", ignore_errors=True)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH  # the time of a file is not asked for, so none is inside
    found = compileall.compile_dir(
        root, maxlevels=99, stripdir=str(root), prependdir="/", quiet=1, force=True, invalidation_mode=mode
    )
    if not found:
        sys.exit("not every Python file could be compiled; which is above")
    moment = int(os.environ["SOURCE_DATE_EPOCH"])
    for path in (root, *root.rglob("*")):
        status = path.lstat()
        os.chown(path, 0, 0, follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            anybody = stat.S_ISDIR(status.st_mode) or status.st_mode & 0o100
            path.chmod(0o1777 if path == root / "tmp" else 0o755 if anybody else 0o644)
        os.utime(path, (moment, moment), follow_symlinks=False)


def leave_out(site: Path, projects: Iterable[Path]) -> None:
    """Remove what the projects do not use of distributions that they need: what they do is `tool.pydra.image.used`."""
    for project in projects:
        about = tomllib.loads((project / "pyproject.toml").read_text())
        for name, patterns in about.get("tool", {}).get("pydra", {}).get("image", {}).get("used", {}).items():
            (found,) = metadata.distributions(name=name, path=[str(site)])
            files = [one for one in found.files or () if not one.parts[0].endswith(".dist-info")]
            unused = [one for one in files if not any(fnmatch.fnmatchcase(str(one), pattern) for pattern in patterns)]
            if len(unused) == len(files):
                sys.exit(f"{project}: tool.pydra.image.used: {name} has no {' or '.join(patterns)}; correct that")
            for one in unused:
                (site / one).unlink(missing_ok=True)
            for folder in sorted({folder for one in unused for folder in one.parents} - {Path()}, reverse=True):
                if (site / folder).is_dir() and not any((site / folder).iterdir()):
                    (site / folder).rmdir()


def _copy_python(root: Path) -> None:
    library = Path(sysconfig.get_path("stdlib"))
    into = _inside(root, library)
    shutil.copytree(library, into, symlinks=True, ignore=shutil.ignore_patterns(*UNUSED, *UNUSED_PATTERNS))
    site = Path(sysconfig.get_path("purelib"))
    for path in (site / "pip", *site.glob("pip-*.dist-info")):
        shutil.copytree(path, _inside(root, path), symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    version = sysconfig.get_python_version()
    for name in ("python", "python3", f"python{version}"):
        _copy(Path(sys.base_prefix, "bin", name), root)
    for path in Path(sys.base_prefix, "lib").glob("libpython3*.so*"):
        _copy(path, root)
    if (version_file := Path(sysconfig.get_path("include"), "patchlevel.h")).exists():  # for hack/sbom.py
        _copy(version_file, root)


def _copy_libraries(root: Path, packages: tuple[str, ...] = ()) -> None:
    """The system's libraries that anything below links to, with all others of the same Debian packages."""
    owners, contents = _read_packages()
    wanted = {*packages, *(owners[path] for path in _linked(root) if path in owners)}
    described = dict(_read_status())
    for package in sorted(wanted):
        copyright_ = Path("/usr/share/doc", package, "copyright")
        for path in (copyright_, *(one for one in contents[package] if _is_library(one))):
            if path.exists():
                _copy(path, root)
        target = root / "var" / "lib" / "dpkg" / "status.d" / package
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(described[package])


def _linked(root: Path) -> Iterator[Path]:
    """The system's libraries that programs and libraries below this are linked to."""
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink() and (path.suffix == ".so" or ".so." in path.name or _runs(path)):
            said = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
            if missing := re.findall(r"(\S+) => not found", said):
                sys.exit(f"{path} needs {', '.join(missing)}, which the base image does not have")
            for found in re.findall(r"(?:=> |^\s*)(/\S+) \(0x", said, flags=re.MULTILINE):
                if not Path(found).is_relative_to(root):
                    yield _real(Path(found))


def _runs(path: Path) -> bool:
    return path.parent.name in {"bin", "sbin"} and path.open("rb").read(4) == b"\x7fELF"


def _is_library(path: Path) -> bool:
    """Of /usr/lib, or of the place where the loader is; not what converts rare encodings."""
    return bool(re.match(r"/usr/lib\w*/.*\.so(\.[^/]*)?$", str(path))) and "gconv" not in path.parts


def _read_packages() -> tuple[dict[Path, str], dict[str, list[Path]]]:
    """The Debian package that each file is from, and the files of each."""
    owners: dict[Path, str] = {}
    contents: dict[str, list[Path]] = {}
    for listing in sorted((DPKG / "info").glob("*.list")):
        package = listing.stem.partition(":")[0]
        contents[package] = [_real(Path(line)) for line in listing.read_text().splitlines()]
        owners |= dict.fromkeys(contents[package], package)
    return owners, contents


def _read_status() -> Iterator[tuple[str, str]]:
    for stanza in (DPKG / "status").read_text().strip().split("\n\n"):
        yield re.findall(r"^Package: (.+)$", stanza, flags=re.MULTILINE)[0], stanza + "\n"


def _real(path: Path) -> Path:
    """Where the file itself is, which may be a link: /lib is one in itself."""
    return Path(os.path.realpath(path.parent), path.name)


def _inside(root: Path, path: Path) -> Path:
    """The place below the root; its directory is there then."""
    target = root / _real(path).relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _copy(path: Path, root: Path) -> None:
    """A file, a link as a link, or a directory."""
    target = _inside(root, path)
    if path.is_symlink():
        target.unlink(missing_ok=True)
        target.symlink_to(os.readlink(path))
    elif path.is_dir():
        shutil.copytree(path, target, symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copyfile(path, target)
        shutil.copymode(path, target)
