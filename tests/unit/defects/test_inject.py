"""Injection: signatures are checked, methods are restored, conflicts are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hybridbench.defects.catalog import find_defect
from hybridbench.defects.defect import Defect, Patch, Replacement, Signature, fingerprint_of
from hybridbench.defects.inject import apply_defects, injected
from hybridbench.foundation.errors import ConfigError, UsageError

SIGNATURE = Signature(("LEAK",), ("growth",), "book", "put", "1")


class Shelf:
    """A class to break."""

    def put(self, book: str) -> str:
        return f"kept {book}"

    def count(self) -> int:
        """How many there are."""
        return 1

    @property
    def is_empty(self) -> bool:
        return False


def lose(self: Shelf, book: str) -> str:
    return f"lost {book}"


def defect(replacement: Replacement, slug: str = "lost-book", method: str = "put") -> Defect:
    patch = Patch(Shelf, method, replacement, fingerprint_of(Shelf.put))
    return Defect(slug, "test", "books go", "smoke", SIGNATURE, (patch,))


def test_a_defect_is_on_inside_the_block_only_even_after_an_error() -> None:
    def fail_inside() -> None:
        with injected(defect(lose)):
            assert Shelf().put("atlas") == "lost atlas"
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail_inside()

    assert Shelf().put("atlas") == "kept atlas"


def test_a_replacement_with_other_parameters_is_refused_before_anything_changes() -> None:
    def wrong(self: Shelf) -> str:
        return ""

    with pytest.raises(ValueError, match="its replacement takes"):
        apply_defects([defect(wrong)])
    assert Shelf().put("atlas") == "kept atlas"


def test_a_property_is_replaced_by_a_property_and_comes_back() -> None:
    with injected(defect(property(lambda self: True), method="is_empty")):
        assert Shelf().is_empty
    assert not Shelf().is_empty
    assert fingerprint_of(vars(Shelf)["is_empty"]) != fingerprint_of(Shelf.count)


@pytest.mark.parametrize(
    ("replacement", "method"), [(property(lambda self: 2), "count"), (lose, "is_empty")]
)
def test_a_property_and_a_method_do_not_replace_each_other(
    replacement: Replacement, method: str
) -> None:
    with pytest.raises(ValueError, match="a property can replace only a property"):
        apply_defects([defect(replacement, method=method)])
    assert (Shelf().count(), Shelf().is_empty) == (1, False)


def test_a_method_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="defines no method 'burn'"):
        apply_defects([defect(lose, method="burn")])


def test_two_defects_on_one_method_are_refused() -> None:
    with pytest.raises(ValueError, match=r"both replace Shelf\.put"):
        apply_defects([defect(lose), defect(lose, slug="other")])
    assert Shelf().put("atlas") == "kept atlas"


def test_a_fingerprint_follows_the_code_and_not_the_docstring() -> None:
    class Twin:
        def count(self) -> int:
            """Other words."""
            return 1

    class Changed:
        def count(self) -> int:
            """How many there are."""
            return 2

    assert fingerprint_of(Twin.count) == fingerprint_of(Shelf.count)
    assert fingerprint_of(Changed.count) != fingerprint_of(Shelf.count)


def test_an_unknown_slug_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean lru-reference-cycle"):
        find_defect("lru-reference-cycles")


def test_a_rate_after_the_slug_selects_the_same_defect_at_that_rate() -> None:
    slow, fast = find_defect("state-row-view@200MiB/h"), find_defect("state-row-view@1 GiB/h")

    assert (slow.slug, fast.slug) == ("state-row-view@200MiB/h", "state-row-view@1GiB/h")
    assert slow.signature == fast.signature == find_defect("state-row-view").signature
    assert slow.truth is not fast.truth
    assert find_defect(slow.slug).slug == slow.slug


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("state-row-view@fast", "--defect state-row-view@fast: 'fast' is not a rate"),
        ("state-row-view@", "--defect state-row-view@: '' is not a rate"),
        ("state-row-view@0GiB/h", "the rate is zero; leave --defect out"),
        ("rid-state-orphan@1GiB/h", "has no rate to choose; state-row-view, unreleased"),
        ("state-row-vie@1GiB/h", "did you mean state-row-view?"),
    ],
)
def test_a_rate_that_cannot_be_is_one_sentence(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        find_defect(name)


def test_a_file_may_bring_a_defect_of_its_own(tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text(
        "from hybridbench.defects.defect import Defect, Signature\n"
        "SAID = Signature(('LEAK',), ('a',), 'b', 'c', 'd')\n"
        "DEFECT = Defect('mine', 'me', 's', 'smoke', SAID, ())\n",
        encoding="utf-8",
    )

    assert find_defect(str(source)).slug == "mine"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = 1", "must define DEFECT"),
        ("raise OSError('no')", "does not import"),
        (None, "no such file"),
    ],
)
def test_a_file_that_is_no_defect_is_one_sentence(
    tmp_path: Path, content: str | None, message: str
) -> None:
    source = tmp_path / "mine.py"
    if content is not None:
        source.write_text(content, encoding="utf-8")

    with pytest.raises(ConfigError, match=message):
        find_defect(str(source))
