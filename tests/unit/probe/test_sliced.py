"""The heap walk inside the process takes short steps."""

from __future__ import annotations

import pytest

from hybridbench.probe.hybridbench_probe import sliced


class Owner:
    """Has a long list, which makes it worth naming."""

    def __init__(self) -> None:
        self.rows = list(range(100))


@pytest.mark.parametrize("many", [list, tuple, set, dict.fromkeys])
def test_one_step_does_not_look_at_each_entry_of_a_long_container(
    many: type[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a million entries once took a second, in which the program shared its interpreter."""
    walk, looked = sliced.Walk(), list[object]()
    real = walk._is_long

    def counted(found: object) -> bool:
        looked.append(found)
        return real(found)

    monkeypatch.setattr(walk, "_is_long", counted)

    assert not walk._is_worth_naming(many(range(20_000)))
    assert looked == []
    assert walk._is_worth_naming(Owner())
