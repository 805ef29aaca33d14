"""Every rule of CDI 1.1.0, and all problems at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from msgspec.structs import replace

from pydra.cdi.document import Spec, SpecDevice
from pydra.cdi.edits import ContainerEdits
from pydra.cdi.validate import find_edit_problems, find_problems
from tests.unit.cdi import strategies

NOTHING = ContainerEdits()
PLAIN = SpecDevice(name="d", edits=NOTHING.with_env("A", "1"))
VALID = Spec(version="1.1.0", kind="acme.example/claim", devices=(PLAIN,))


def _named(name: str) -> Spec:
    return replace(VALID, devices=(replace(PLAIN, name=name),))


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(VALID, id="plain"),
        pytest.param(replace(VALID, kind="a/b"), id="names of one letter"),
        pytest.param(replace(VALID, kind="A_c-m.e9/C_l-a.s9"), id="every character of a kind"),
        pytest.param(_named("0"), id="device of one digit"),
        pytest.param(_named("a_b-c.d:e9"), id="every character of a device name"),
        pytest.param(replace(VALID, version="v1.1.0"), id="leading v"),
        pytest.param(replace(VALID, annotations={"example.com/a_b.c-d": "x", "plain": ""}), id="annotations"),
    ],
)
def test_a_valid_spec_has_no_problems(spec: Spec) -> None:
    assert find_problems(spec) == ()


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        pytest.param(replace(VALID, kind="acme"), "kind: 'acme' is not vendor/class", id="no class"),
        pytest.param(
            replace(VALID, kind="9acme/claim"), "the vendor '9acme' must begin with a letter", id="digit first"
        ),
        pytest.param(replace(VALID, kind="acme-/claim"), "the vendor 'acme-' must", id="dash last"),
        pytest.param(replace(VALID, kind="acme/cl aim"), "the class 'cl aim' must", id="space in the class"),
        pytest.param(replace(VALID, kind="acme/a/b"), "the class 'a/b' must", id="two slashes"),
        pytest.param(replace(VALID, kind="acme/"), "the class '' must", id="empty class"),
        pytest.param(
            replace(VALID, kind="a" * 254 + "/c"), "the vendor has 254 characters, at most 253", id="long vendor"
        ),
        pytest.param(replace(VALID, kind="a/" + "c" * 64), "the class has 64 characters, at most 63", id="long class"),
        pytest.param(replace(VALID, devices=()), "devices: a spec has at least one device", id="no devices"),
        pytest.param(replace(VALID, devices=(PLAIN, PLAIN)), "devices: 2 devices have the name 'd'", id="name twice"),
        pytest.param(_named(""), "devices[0].name: '' must begin", id="device without a name"),
        pytest.param(_named("a/b"), "devices[0].name: 'a/b' must begin", id="slash in a device name"),
        pytest.param(_named("a:"), "devices[0].name: 'a:' must begin", id="colon last"),
        pytest.param(
            replace(VALID, devices=(SpecDevice(name="d", edits=NOTHING),)),
            "devices[0].containerEdits: empty",
            id="device without edits",
        ),
        pytest.param(replace(VALID, version="1.2.0"), "cdiVersion: '1.2.0' is none of", id="unknown version"),
        pytest.param(replace(VALID, version=""), "cdiVersion: '' is none of", id="no version"),
        pytest.param(
            replace(VALID, version="0.6.0", edits=NOTHING.with_additional_gids(5)),
            "cdiVersion: '0.6.0' is too low, what the spec uses needs 0.7.0",
            id="version too low",
        ),
        pytest.param(replace(VALID, annotations={"a b": ""}), "annotations: 'a b' is no qualified name", id="bad key"),
        pytest.param(
            replace(VALID, annotations={"/a": ""}), "annotations: '/a' is no qualified name", id="empty prefix"
        ),
        pytest.param(
            replace(VALID, annotations={"a": "x" * (256 * 1024)}), "262145 bytes, at most 262144", id="long annotations"
        ),
        pytest.param(
            replace(VALID, devices=(replace(PLAIN, annotations={"": "x"}),)),
            "devices[0].annotations: '' is no qualified name",
            id="annotation of a device",
        ),
    ],
)
def test_a_spec_that_a_runtime_refuses_is_told_why(spec: Spec, problem: str) -> None:
    (found,) = find_problems(spec)
    assert found.startswith(problem) or problem in found


@pytest.mark.parametrize(
    ("edits", "problem"),
    [
        pytest.param(NOTHING.with_env("", "1"), "env: '' is no name", id="variable without a name"),
        pytest.param(NOTHING.with_env("A=B", "1"), "env: 'A=B' is no name", id="equals sign in a name"),
        pytest.param(NOTHING.with_env("A", "1\0"), "NUL", id="NUL in a value"),
        pytest.param(NOTHING.with_device_node(""), "deviceNodes[0].path: '' is no absolute path", id="node, no path"),
        pytest.param(NOTHING.with_device_node("dev/a"), "deviceNodes[0].path: 'dev/a'", id="node, relative path"),
        pytest.param(
            NOTHING.with_device_node("/a", host_path="b"), "deviceNodes[0].hostPath: 'b'", id="node, host path"
        ),
        pytest.param(
            NOTHING.with_device_node("/a", type="x"), "deviceNodes[0].type: 'x' is none of b, c, u, p", id="type"
        ),
        pytest.param(NOTHING.with_device_node("/a", permissions="rx"), "permissions: 'rx'", id="permissions"),
        pytest.param(NOTHING.with_device_node("/a", permissions="nonerw"), "permissions: 'nonerw'", id="none and more"),
        pytest.param(NOTHING.with_device_node("/a", major=2**63), "major: 9223372036854775808 is not", id="major"),
        pytest.param(NOTHING.with_device_node("/a", uid=-1), "uid: -1 is not between 0 and 4294967295", id="uid"),
        pytest.param(NOTHING.with_device_node("/a", gid=2**32), "gid: 4294967296 is not", id="gid"),
        pytest.param(NOTHING.with_device_node("/a", file_mode=-1), "fileMode: -1 is not", id="file mode"),
        pytest.param(NOTHING.with_mount("", "/a"), "mounts[0].hostPath: '' is no absolute", id="mount of nothing"),
        pytest.param(
            NOTHING.with_mount("/a", "b"), "mounts[0].containerPath: 'b' is no absolute", id="mount, relative"
        ),
        pytest.param(
            NOTHING.with_mount("", "/a", type="tmpfs"), "mounts[0].hostPath: empty", id="mount without source"
        ),
        pytest.param(
            NOTHING.with_hook("later", "/h"), "hooks[0].hookName: 'later' is none of prestart", id="hook name"
        ),
        pytest.param(NOTHING.with_hook("poststop", "h"), "hooks[0].path: 'h' is no absolute path", id="hook path"),
        pytest.param(NOTHING.with_hook("poststop", "/h", env=["A"]), "hooks[0].env: 'A' is not", id="hook variable"),
        pytest.param(NOTHING.with_hook("poststop", "/h", timeout=-1), "hooks[0].timeout: -1 is not", id="timeout"),
        pytest.param(
            NOTHING.with_net_device("", "a"), "netDevices[0].hostInterfaceName: empty", id="no host interface"
        ),
        pytest.param(NOTHING.with_net_device("a", ""), "netDevices[0].name: empty", id="no interface name"),
        pytest.param(
            NOTHING.with_net_device("a", "b").with_net_device("a", "c"),
            "2 entries have the hostInterfaceName 'a'",
            id="host interface twice",
        ),
        pytest.param(
            NOTHING.with_net_device("a", "c").with_net_device("b", "c"), "2 entries have the name 'c'", id="name twice"
        ),
        pytest.param(NOTHING.with_intel_rdt(clos_id=".."), "intelRdt.closID: '..'", id="closID up"),
        pytest.param(NOTHING.with_intel_rdt(clos_id="a/b"), "intelRdt.closID: 'a/b'", id="closID with a slash"),
        pytest.param(NOTHING.with_intel_rdt(clos_id="a\n"), "intelRdt.closID", id="closID with a newline"),
        pytest.param(NOTHING.with_intel_rdt(clos_id="a" * 4096), "intelRdt.closID", id="long closID"),
        pytest.param(NOTHING.with_additional_gids(-1), "additionalGids: -1 is not between", id="negative group"),
    ],
)
def test_edits_that_break_a_rule_are_told_which(edits: ContainerEdits, problem: str) -> None:
    (found,) = find_edit_problems(edits)
    assert found.startswith("containerEdits")
    assert problem in found


@given(edits=strategies.edits)
def test_valid_edits_have_no_problems(edits: ContainerEdits) -> None:
    assert find_edit_problems(edits) == ()


def test_a_text_that_only_looks_like_a_nul_byte_is_fine() -> None:
    assert find_edit_problems(NOTHING.with_env("A", r"\u0000")) == ()


def test_all_problems_are_told_at_once() -> None:
    edits = NOTHING.with_env("", "").with_device_node("a").with_mount("b").with_hook("c", "d")
    spec = Spec(version="7", kind="?", devices=(SpecDevice(name="", edits=edits),))
    assert len(find_problems(spec)) == 9
