"""Find the lengths at which the program's code shortens its containers.

A cache is often limited by a number in its code, as in ``if len(self.held) > 4096:
self.held.popitem()``.  Only code that also removes or replaces something counts: a warning about a
long queue is no limit.
"""

from __future__ import annotations

import opcode
import sys
import types
from collections.abc import Iterable, Iterator, Sequence

from . import raw

# Parts of the names of methods that remove entries.
_REMOVES = (
    *("pop", "clear", "remove", "delete", "discard", "evict", "expire", "trim", "prune"),
    *("purge", "shrink", "drop", "truncate", "reset", "flush"),
)
# Code units before a comparison that may load both of its sides.
_BEFORE = 48
_CALLS = frozenset({"CALL", "CALL_FUNCTION"})
_SKIPPED = frozenset({"CACHE", "PRECALL", "EXTENDED_ARG", "PUSH_NULL", "NOP", "NOT_TAKEN"})
_OPCODES = opcode.opmap
_STORES = frozenset({_OPCODES["STORE_ATTR"], _OPCODES["STORE_GLOBAL"]})
_DELETES = _OPCODES["DELETE_SUBSCR"]
_COMPARES = _OPCODES["COMPARE_OP"]
# Bits of an argument below the place of the name.
_SHIFTS = {
    "LOAD_GLOBAL": int(sys.version_info >= (3, 11)),
    "LOAD_ATTR": int(sys.version_info >= (3, 12)),
}
_LOADS_LEN = (("LOAD_GLOBAL", _SHIFTS["LOAD_GLOBAL"]), ("LOAD_NAME", 0))


class Limits:
    """The limits in code, by the module and the name of the variable that holds the container.

    The limit of a container that is compared as a whole (``len(self)``) is under its class.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._names: dict[tuple[str, str], set[str]] = {}
        self._met: set[int] = set()

    def read_function(self, function: types.FunctionType) -> None:
        """Collect the limits in ``function``."""
        self.read_code(raw.code(function), function.__globals__, raw.qualname(function))

    def read_code(self, code: types.CodeType, its_globals: object, qualname: str = "") -> None:
        """Collect the limits in ``code``, which runs with ``its_globals``."""
        module = raw.module_name(its_globals)
        if module is None or type(its_globals) is not dict or id(code) in self._met:
            return
        self._met.add(id(code))
        owner = qualname.rpartition(".")[0].rpartition(".")[2]
        for name, limit in _limits_in(code):
            is_self = code.co_argcount > 0 and code.co_varnames[0] == name
            key = module, owner if is_self and owner not in ("", "<locals>") else name
            number = its_globals.get(limit) if type(limit) is str else limit
            if type(number) is int:
                self._numbers[key] = max(number, self._numbers.get(key, 0))
            elif type(limit) is str:
                self._names.setdefault(key, set()).add(limit)

    def of(
        self, modules: Iterable[str], name: object, values: Iterable[tuple[object, object]] = ()
    ) -> int | None:
        """The limit of the container in the variable ``name`` of one of ``modules``; None if none.

        ``values`` are the other attributes of its owner, some of which may be its limit.
        """
        keys = [(module, name) for module in modules if type(name) is str]
        return self.of_class(keys, values)

    def of_class(
        self, classes: Iterable[tuple[str, str]], values: Iterable[tuple[object, object]] = ()
    ) -> int | None:
        """The limit of a container of one of ``classes``, given by module and name."""
        found = []
        for key in classes:
            found += [self._numbers[key]] if key in self._numbers else []
            names = self._names.get(key, ())
            # An attribute that is no plain string may define how it is hashed and compared.
            found += [n for at, n in values if type(at) is str and at in names and type(n) is int]
        return max((limit for limit in found if limit > 0), default=None)


def _limits_in(code: types.CodeType) -> Iterator[tuple[str, int | str]]:
    """The variables whose length ``code`` compares and which it may shorten, with the other side.

    That is a number, or the name of a variable.
    """
    if "len" not in code.co_names or _COMPARES not in code.co_code[::2]:
        return
    removes = _DELETES in code.co_code[::2] or any(
        part in name.lower() for name in code.co_names for part in _REMOVES
    )
    if not removes and not _STORES.intersection(code.co_code[::2]):
        return
    for name, limit in _comparisons(code):
        if removes or _is_replaced(code, name):
            yield name, limit


def _is_replaced(code: types.CodeType, name: str) -> bool:
    """Whether ``code`` assigns to the attribute or the global variable ``name``."""
    if name not in code.co_names:
        return False
    place = code.co_names.index(name)
    steps = zip(code.co_code[::2], code.co_code[1::2])
    return any(step == place and opcode in _STORES for opcode, step in steps)


def _comparisons(code: types.CodeType) -> Iterator[tuple[str, int | str]]:
    """The comparisons of a length in ``code``: the variable, and the number or other variable."""
    data, place = code.co_code, code.co_names.index("len")
    loads = [bytes((_OPCODES[kind], place << shift & 0xFF)) for kind, shift in _LOADS_LEN]
    opcodes = data[::2]
    at = opcodes.find(_COMPARES)
    while at >= 0:
        # ``dis`` would take a hundred times as long for the whole function.
        start = 2 * max(0, at - _BEFORE)
        part = data[start : 2 * at]
        # Whether or not a call follows (the lowest bit, from Python 3.11 on).
        if any(one in part or bytes((one[0], one[1] | 1)) in part for one in loads):
            found = _compared_at_end(_steps(code, start, 2 * at))
            if found is not None:
                yield found
        at = opcodes.find(_COMPARES, at + 1)


def _compared_at_end(steps: Iterable[tuple[str, object]]) -> tuple[str, int | str] | None:
    """What a comparison after ``steps`` compares with a length; None if it does not."""
    measured: object = None
    # The values last loaded: before ``len``, and as its argument or after its call.
    before: object = None
    loaded: object = None
    is_measuring = False
    for kind, value in steps:
        if kind in ("LOAD_GLOBAL", "LOAD_NAME") and value == "len":
            before, measured, loaded, is_measuring = loaded, None, None, True
        elif value is not None:
            loaded = value
        elif kind in _CALLS and is_measuring:
            measured, loaded, is_measuring = loaded, None, False
        else:
            before = measured = loaded = None
            is_measuring = False
    other = before if loaded is None else loaded
    if type(measured) is str and (type(other) is int or type(other) is str):
        return measured, other
    return None


def _steps(code: types.CodeType, start: int, end: int) -> Iterator[tuple[str, object]]:
    """The instructions between two offsets: a name, and the number or variable that it loads."""
    cells = (*code.co_cellvars, *code.co_freevars)
    if sys.version_info >= (3, 11):
        cells = (*code.co_varnames, *(name for name in cells if name not in code.co_varnames))
    tables: dict[str, Sequence[object]] = {
        "LOAD_FAST": code.co_varnames,
        "LOAD_FAST_BORROW": code.co_varnames,
        "LOAD_DEREF": cells,
        "LOAD_CONST": code.co_consts,
        "LOAD_GLOBAL": code.co_names,
        "LOAD_NAME": code.co_names,
        "LOAD_ATTR": code.co_names,
        "LOAD_SMALL_INT": range(256),
    }
    extended = 0
    for at in range(start, end, 2):
        kind, argument = opcode.opname[code.co_code[at]], code.co_code[at + 1] | extended
        extended = argument << 8 if kind == "EXTENDED_ARG" else 0
        if kind in _SKIPPED:
            continue
        table, place = tables.get(kind, ()), argument >> _SHIFTS.get(kind, 0)
        value = table[place] if place < len(table) else None
        yield kind, value if type(value) in (int, str) else None
