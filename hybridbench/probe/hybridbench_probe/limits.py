"""Find what limits containers in the program's code: a number of entries, or an expiry.

``if len(self.held) > 4096: self.held.popitem()`` states a number, and so does a refusal such as
``if len(self.queue) >= 100: raise``; a warning about a long queue is no limit.  A function that
reads a clock and goes through a container, removes entries or keeps only some, or empties it, lets
them expire.  One that removes the oldest under some condition, or that is named after it, such as
``evict``, limits something else, such as bytes or the slots of a pool; and so does one that adds
entries and removes all under some condition.
"""

from __future__ import annotations

import opcode
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from . import raw

# Stands for a limit that is no number of entries.
NOT_A_NUMBER = 10**9

# Parts of the names of functions that remove entries.
_SHORTENS = (
    *("pop", "clear", "remove", "delete", "discard", "evict", "expire", "trim", "prune"),
    *("purge", "shrink", "drop", "truncate", "reset", "flush"),
)
# Those of functions that remove entries only to make room, or because of their age.
_MAKES_ROOM = (
    *("evict", "expire", "prune", "purge", "trim", "shrink", "reclaim"),
    *("make_room", "oldest", "stale", "lru"),
)
_REMOVES = frozenset({"pop", "popitem", "popleft", "remove", "discard", "clear", "heappop"})
_ADDS = frozenset({"append", "appendleft", "add", "setdefault", "put", "insert", "extend"})
# Names of clocks, and of what an age is compared with.
_CLOCKS = frozenset(
    {
        *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "now", "utcnow"),
        *("ttl", "ttl_s", "expiry", "expires", "expires_at", "deadline"),
    }
)
_FIRSTS = frozenset({"popitem", "next"})
_VIEWS = frozenset({"items", "keys", "values", "copy"})
_COPIES = frozenset({"list", "tuple", "sorted", "set", "dict", "iter"})
_CALLED = _COPIES | {"heappop"}
_NEW = frozenset({"BUILD_LIST", "BUILD_MAP"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_STORES = frozenset({"STORE_ATTR", "STORE_GLOBAL"})
# Code units before a comparison that may load both of its sides.
_BEFORE = 48
_CALLS = frozenset({"CALL", "CALL_FUNCTION"})
_SKIPPED = frozenset({"CACHE", "PRECALL", "EXTENDED_ARG", "PUSH_NULL", "NOP", "NOT_TAKEN"})
_OPCODES = opcode.opmap
_REPLACES = frozenset({_OPCODES["STORE_ATTR"], _OPCODES["STORE_GLOBAL"]})
_DELETES = _OPCODES["DELETE_SUBSCR"]
_EMPTY = [bytes((_OPCODES[kind], 0)) for kind in sorted(_NEW)]
_SETS = _OPCODES["STORE_SUBSCR"]
_COMPARES = _OPCODES["COMPARE_OP"]
_RAISES = _OPCODES["RAISE_VARARGS"]
# Instructions that skip code unless a condition is true, and those that do not go on to the next.
_SKIPS_UNLESS = frozenset({"POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE"})
_LEAVES = frozenset(
    {
        *("RAISE_VARARGS", "RETURN_VALUE", "RETURN_CONST"),
        *("JUMP_BACKWARD", "POP_JUMP_BACKWARD_IF_TRUE", "JUMP_ABSOLUTE"),
    }
)
# Bits of an argument below the place of the name, or below that of the comparison.
_SHIFTS = {
    "LOAD_GLOBAL": int(sys.version_info >= (3, 11)),
    "LOAD_ATTR": int(sys.version_info >= (3, 12)),
}
_SHIFT_OF_COMPARISON = 5 if sys.version_info >= (3, 13) else 4 if sys.version_info >= (3, 12) else 0
_TURNED = str.maketrans("<>", "><")
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
            if type(number) is int and number <= NOT_A_NUMBER:
                self._numbers[key] = _larger(number, self._numbers.get(key, 0))
            elif type(limit) is str:
                self._names.setdefault(key, set()).add(limit)

    def of(
        self, modules: Iterable[str], name: object, values: Iterable[tuple[object, object]] = ()
    ) -> int | None:
        """The limit of the container in the variable ``name`` of one of ``modules``; None if none.

        ``values``, in which its limit may be, are the other attributes of its owner, and theirs.
        """
        keys = [(module, name) for module in modules if type(name) is str]
        return self.of_class(keys, values)

    def of_class(
        self, classes: Iterable[tuple[str, str]], values: Iterable[tuple[object, object]]
    ) -> int | None:
        """The limit of a container of one of ``classes``, given by module and name."""
        limit = 0
        names: set[str] = set()
        for key in classes:
            limit = _larger(limit, self._numbers.get(key, 0))
            names |= self._names.get(key, set())
        for name, value in values if names else ():
            # An attribute that is no plain string may define how it is hashed and compared.
            if type(name) is str and name in names and type(value) is int:
                limit = _larger(limit, value if value < NOT_A_NUMBER else 0)
        return limit if limit > 0 else None


def _larger(one: int, other: int) -> int:
    """The larger number of entries; a limit that is no number counts only if there is none."""
    larger = max(one, other)
    return min(one, other) or larger if larger == NOT_A_NUMBER else larger


def _limits_in(code: types.CodeType) -> Iterator[tuple[str, int | str]]:
    """The variables whose containers ``code`` limits, each with its limit.

    That is a number, or the name of a variable that holds it.
    """
    opcodes = code.co_code[::2]
    for name in _swept(code, opcodes) | _buffers(code, opcodes):
        yield name, NOT_A_NUMBER
    if "len" not in code.co_names or _COMPARES not in opcodes:
        return
    shortens = _DELETES in opcodes or any(
        part in name.lower() for name in code.co_names for part in _SHORTENS
    )
    adds = _SETS in opcodes or not _ADDS.isdisjoint(code.co_names)
    raises = _RAISES in opcodes
    if shortens or adds or raises or not _REPLACES.isdisjoint(opcodes):
        for name, limit, at, sign in _comparisons(code):
            is_below = adds and sign in ("<", "<=")
            is_more = sign in (">", ">=")
            if (
                shortens
                or is_below
                or ((adds or raises) and is_more and _is_refused(code, at, name))
                or _is_replaced(code, name)
            ):
                yield name, limit
                # What is removed together with its entries has as many.
                end = _end_if_true(code.co_code, at) if is_more else 0
                removed = (_removed(step, replaces=False) for step in _in_context(code, at, end))
                yield from ((other, limit) for other in _names_in(removed))


def _is_refused(code: types.CodeType, at: int, name: str) -> bool:
    """Whether ``code`` adds nothing to ``name`` if the comparison at ``at`` is true.

    An exception refuses also what other code would add.
    """
    data = code.co_code
    end = last = _end_if_true(data, at)
    kind = "NOP"
    while kind in _SKIPPED and last > at:
        last -= 2
        kind = opcode.opname[data[last]]
    if kind not in _LEAVES or _RAISES in data[at:end:2]:
        return kind in _LEAVES
    is_loaded = False
    for kind, value in _steps(code, end, len(data)):
        is_loaded = is_loaded or value == name
        if is_loaded and (kind == "STORE_SUBSCR" or value in _ADDS):
            return True
    return False


def _end_if_true(data: bytes, at: int) -> int:
    """Where the code ends that needs the comparison at ``at`` to be true; 0 if unknown."""
    kind, extended = "NOP", 0
    while kind in _SKIPPED:
        at += 2
        kind, argument = opcode.opname[data[at]], data[at + 1] | extended
        extended = argument << 8 if kind == "EXTENDED_ARG" else 0
    if kind not in _SKIPS_UNLESS:
        return 0
    if sys.version_info < (3, 11):
        return 2 * argument if sys.version_info >= (3, 10) else argument
    at += 2
    while opcode.opname[data[at]] == "CACHE":
        at += 2
    return at + 2 * argument


def _is_replaced(code: types.CodeType, name: str) -> bool:
    """Whether ``code`` assigns to the attribute or the global variable ``name``."""
    if name not in code.co_names:
        return False
    place = code.co_names.index(name)
    steps = zip(code.co_code[::2], code.co_code[1::2])
    return any(step == place and opcode in _REPLACES for opcode, step in steps)


def _swept(code: types.CodeType, opcodes: bytes) -> set[str]:
    """The variables from whose containers ``code`` removes old entries.

    Either it reads a clock, and goes through them, looks at their first entry or empties them; or
    it takes the first entry under a condition; or its name says so.
    """
    is_timed = not _CLOCKS.isdisjoint((*code.co_names, *code.co_varnames))
    has_condition = _COMPARES in opcodes and code.co_name != "__init__"
    takes_first = has_condition and not _FIRSTS.isdisjoint(code.co_names)
    removes = _DELETES in opcodes or not _REMOVES.isdisjoint(code.co_names)
    replaces = is_timed and not _REPLACES.isdisjoint(opcodes)
    if removes and any(part in code.co_name.lower() for part in _MAKES_ROOM):
        return _names_in(_removed(step, replaces=False) for step in _in_context(code))
    if not (is_timed or takes_first) or not (removes or replaces):
        return set()
    replaces = replaces and _filters_by_age(code)
    visited: set[object] = set()
    removed: set[object] = set()
    for step in _in_context(code):
        visited.add(_visited(step, is_timed=is_timed))
        removed.add(_removed(step, replaces=replaces))
        if is_timed and has_condition:
            emptied = _emptied(step)
            visited.add(emptied)
            removed.add(emptied)
    return _names_in(visited & removed)


def _buffers(code: types.CodeType, opcodes: bytes) -> set[str]:
    """The variables to whose containers ``code`` adds, and which it empties under a condition."""
    if _COMPARES not in opcodes or code.co_name == "__init__":
        return set()
    if _SETS not in opcodes and _ADDS.isdisjoint(code.co_names):
        return set()
    renews = not _REPLACES.isdisjoint(opcodes) and any(one in code.co_code for one in _EMPTY)
    if not renews and "clear" not in code.co_names:
        return set()
    steps = list(_in_context(code))
    return _names_in(set(map(_added, steps)) & set(map(_emptied, steps)))


def _names_in(found: Iterable[object]) -> set[str]:
    return {name for name in found if type(name) is str}


class _Step(NamedTuple):
    """An instruction, and what came before it."""

    kind: str
    value: object
    # The two values loaded last, the function that is called, and whether a new container is empty.
    before: object
    last: object
    given_to: object
    is_empty: bool


def _in_context(code: types.CodeType, start: int = 0, end: int | None = None) -> Iterator[_Step]:
    called: object = None
    before: object = None
    last: object = None
    is_empty = False
    for kind, value in _steps(code, start, len(code.co_code) if end is None else end):
        yield _Step(kind, value, before, last, called if kind in _CALLS else None, is_empty)
        is_empty = kind in _NEW or (is_empty and kind in ("LOAD_FAST", "LOAD_FAST_BORROW"))
        if kind not in _STORES:
            called = value if value is None or value in _CALLED else called
            # An attribute takes the place of its owner.
            before, last = before if kind in _ATTRIBUTES else last, value


def _visited(step: _Step, *, is_timed: bool) -> object:
    """The variable at whose entries the code looks in this step; None if at none."""
    if step.value == "popitem" or step.given_to == "iter":
        return step.last
    if not is_timed:
        return None
    if step.kind == "BINARY_SUBSCR" and step.last == 0:
        return step.before
    is_each = step.value in _VIEWS or step.given_to in _COPIES or step.kind == "GET_ITER"
    return step.last if is_each else None


def _removed(step: _Step, *, replaces: bool) -> object:
    """The variable whose entries are removed in this step; None if none are."""
    if step.value in _REMOVES or step.given_to == "heappop":
        return step.last
    if step.kind == "DELETE_SUBSCR":
        return step.before
    return step.value if replaces and step.kind in _STORES else None


def _added(step: _Step) -> object:
    """The variable to whose container the code adds in this step; None if to none."""
    if step.value in _ADDS:
        return step.last
    return step.before if step.kind == "STORE_SUBSCR" else None


def _emptied(step: _Step) -> object:
    """The variable whose container is emptied in this step, or replaced by a new one."""
    if step.value == "clear":
        return step.last
    return step.value if step.is_empty and step.kind in _STORES else None


def _filters_by_age(code: types.CodeType) -> bool:
    """Whether ``code`` compares something, in its comprehensions if it has any of its own code.

    There, an age is compared with a variable of the function, or with a clock.
    """
    inner = [one for one in code.co_consts if type(one) is types.CodeType]
    if not inner:
        return _COMPARES in code.co_code[::2]
    return any(
        _COMPARES in one.co_code[::2]
        and (one.co_freevars or not _CLOCKS.isdisjoint((*one.co_names, *one.co_varnames)))
        for one in inner
    )


def _comparisons(code: types.CodeType) -> Iterator[tuple[str, int | str, int, str]]:
    """The comparisons of a length in ``code``: the variable, and the number or other variable.

    Then the offset of each, and its sign as if the length came first.
    """
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
                sign = opcode.cmp_op[data[2 * at + 1] >> _SHIFT_OF_COMPARISON]
                name, limit, is_first = found
                yield name, limit, 2 * at, sign if is_first else sign.translate(_TURNED)
        at = opcodes.find(_COMPARES, at + 1)


def _compared_at_end(steps: Iterable[tuple[str, object]]) -> tuple[str, int | str, bool] | None:
    """What a comparison after ``steps`` compares with a length; None if it does not.

    The last value says whether the length comes first.
    """
    measured: object = None
    # The values last loaded: before ``len``, and as its argument or after its call.
    before: object = None
    loaded: object = None
    is_measuring = False
    for kind, value in steps:
        if kind in ("LOAD_GLOBAL", "LOAD_NAME") and value == "len":
            before, measured, loaded, is_measuring = loaded, None, None, True
        elif value is not None and kind not in _STORES:
            loaded = value
        elif kind in _CALLS and is_measuring:
            measured, loaded, is_measuring = loaded, None, False
        else:
            before = measured = loaded = None
            is_measuring = False
    other = before if loaded is None else loaded
    if type(measured) is str and (type(other) is int or type(other) is str):
        return measured, other, loaded is not None
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
        "LOAD_METHOD": code.co_names,
        "STORE_ATTR": code.co_names,
        "STORE_GLOBAL": code.co_names,
        "LOAD_SMALL_INT": range(256),
    }
    data = code.co_code
    extended = 0
    for at in range(start, end, 2):
        kind, argument = opcode.opname[data[at]], data[at + 1] | extended
        extended = argument << 8 if kind == "EXTENDED_ARG" else 0
        if kind in _SKIPPED:
            continue
        table, place = tables.get(kind, ()), argument >> _SHIFTS.get(kind, 0)
        value = table[place] if place < len(table) else None
        yield kind, value if type(value) in (int, str) else None
