from __future__ import annotations

from itertools import pairwise

import pytest

from hybridbench.foundation.errors import ConfigError
from hybridbench.workload.yaml_source import parse_scalar, parse_yaml

TEXT = """\
name: x
pools:
  kv_tokens: 1
promise:
  - {rss: 1}
  - rss: 2
"""


def test_every_key_and_list_entry_has_its_line() -> None:
    source = parse_yaml(TEXT, "f.yaml")

    assert source.data == {
        "name": "x",
        "pools": {"kv_tokens": 1},
        "promise": [{"rss": 1}, {"rss": 2}],
    }
    assert source.lines[("pools", "kv_tokens")] == 3
    assert source.lines[("promise", 0, "rss")] == 5
    assert source.lines[("promise", 1)] == 6


def test_a_missing_key_has_the_place_of_its_parent() -> None:
    source = parse_yaml(TEXT, "f.yaml")

    assert source.place(("pools", "page_size")) == "f.yaml:2"
    assert source.place(("gc",)) == "f.yaml"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [1", "f:1: malformed YAML: expected ',' or ']', but got '<stream end>'."),
        (
            "a: &a [*a]",
            "f: malformed YAML: it is nested more than 100 levels deep, or contains itself.",
        ),
        ("a: !!python/object:os.system {}", None),
        ("a: \x00", None),
        ("a: 1\n---\nb: 2\n", "f:2: malformed YAML: but found another document."),
        ("a: {b: 1, b: 2}", "f:1: a.b is given twice, first on line 1."),
        ("a:\n  b: 1:30:00", "f:2: a.b: 1:30:00 is ambiguous; write 90s, 1h30m or 1.5h."),
        ("a: 2024-99-99", None),
    ],
)
def test_malformed_text_is_one_sentence(text: str, sentence: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f")

    message = str(caught.value)
    assert message.startswith("f:1: " if "python" in text else "f")
    assert "\n" not in message
    if sentence is not None:
        assert message == sentence


def test_a_setting_that_is_no_yaml_is_its_own_text() -> None:
    assert parse_scalar(">5/min") == ">5/min"
    assert parse_scalar("64") == 64
    assert parse_scalar("[1, 2]") == [1, 2]
    assert parse_scalar("null") is None
    assert parse_scalar("") == ""
    assert parse_scalar("zipf(1.1)") == "zipf(1.1)"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: !!bool abc", "f:1: malformed YAML: abc is no bool."),
        ("a: 1\nb: !!int x", "f:2: malformed YAML: x is no int."),
        ("a: 99999999999999999999", "f:1: malformed YAML: 99999999999999999999 is a whole number"),
        (f"a: {'9' * 5000}", f"f:1: malformed YAML: {'9' * 60}... is no int."),
        ("? [a]\n: 1", "f:1: a key must be a word, not a list or a map."),
        ("[" * 5000, "f:1: malformed YAML: it is nested more than 100 levels deep"),
        ("a: " + "{b: " * 150 + "1" + "}" * 150, "f:1: malformed YAML: it is nested more"),
    ],
)
def test_a_value_that_cannot_be_is_told_with_its_line(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f")

    assert str(caught.value).startswith(sentence)


def test_a_bomb_of_aliases_is_refused_before_it_is_built() -> None:
    names = "abcdefghij"
    lines = [f"a: &a [{', '.join('x' * 9)}]"]
    for below, name in pairwise(names):
        lines.append(f"{name}: &{name} [{', '.join([f'*{below}'] * 9)}]")

    with pytest.raises(ConfigError, match="f: more than 20000 values, aliases counted"):
        parse_yaml("\n".join(lines), "f")


def test_a_setting_that_does_not_fit_its_tag_is_its_own_text() -> None:
    assert parse_scalar("!!bool abc") == "!!bool abc"
