"""Bytes of YAML that somebody wrote: decoded, or refused in one line."""

from __future__ import annotations

import pytest

from pydra.yaml_documents import NotYaml, decode_yaml, decode_yaml_documents


def test_a_pair_of_surrogates_as_json_writes_it_is_one_character() -> None:
    assert decode_yaml(rb'{"\ud83d\ude00": "a\ud83d\ude00"}') == {"\U0001f600": "a\U0001f600"}


def test_several_documents_are_decoded_in_order() -> None:
    assert decode_yaml_documents(b"a: 1\n---\n---\n- b\n") == [{"a": 1}, None, ["b"]]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        pytest.param(rb'a: "\ud800"', "an unpaired surrogate, which is not valid Unicode", id="an unpaired surrogate"),
        pytest.param(b"a: [", "expected the node content", id="a bracket that is not closed"),
        pytest.param(b"a: 1\n---\nb: 2\n", "expected a single document", id="two documents"),
        pytest.param(b"2026-13-45", "month must be in 1..12", id="a date that does not exist"),
        pytest.param(b"!!bool x", "'x'", id="a value that is not of its type"),
        pytest.param(b"[" * 10_000, "maximum recursion depth", id="too many brackets"),
        pytest.param(b"\xff", "", id="bytes that are not UTF-8"),
    ],
)
def test_what_is_not_yaml_is_refused_in_one_line(content: bytes, why: str) -> None:
    with pytest.raises(NotYaml) as caught:
        decode_yaml(content)
    (line,) = str(caught.value).splitlines()
    assert why in line
