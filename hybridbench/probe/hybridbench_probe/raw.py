"""Read objects while bypassing any method that their class may define."""

from __future__ import annotations

import types
from collections.abc import Iterator

_read_type_dict = vars(type)["__dict__"].__get__
_read_mro = vars(type)["__mro__"].__get__
_read_module_dict = vars(types.ModuleType)["__dict__"].__get__
_read_code = vars(types.FunctionType)["__code__"].__get__
_read_module_of_type = vars(type)["__module__"].__get__
_read_name = vars(type)["__name__"].__get__
# How to get the function inside a class variable of these types.
_FUNCTION_OF = tuple(
    (kind, vars(kind)[name].__get__)
    for kind, name in ((staticmethod, "__func__"), (classmethod, "__func__"), (property, "fget"))
)
_NOTHING: dict[str, object] = {}


def items_of_type(kind: type) -> list[tuple[object, object]]:
    """The variables of a class; empty if the interpreter has not initialised it yet."""
    return list((_read_type_dict(kind) or _NOTHING).items())


def type_variable(kind: type, name: str) -> object:
    """One variable of a class; None if missing."""
    return (_read_type_dict(kind) or _NOTHING).get(name)


def functions_of_type(kind: type) -> Iterator[types.FunctionType]:
    """The methods of a class that are written in Python."""
    for _, value in items_of_type(kind):
        found = value
        # Not ``isinstance``, which would ask the variable itself for its class.
        for wrapper, read in _FUNCTION_OF:
            if issubclass(type(value), wrapper):
                found = read(value)
        if type(found) is types.FunctionType:
            yield found


def module_of_type(kind: type) -> str | None:
    """The name of the module that defines a class; None if it is missing or not a string."""
    try:
        found = _read_module_of_type(kind)
    except AttributeError:
        return None
    return found if type(found) is str else None


def names_of_classes(kind: type) -> list[tuple[str, str]]:
    """The module and the name of a class and of each of its bases."""
    return [(module_of_type(base) or "", _read_name(base)) for base in mro(kind)]


def mro(kind: type) -> tuple[type, ...]:
    """The class and its bases, in the order in which attributes are looked up."""
    return _read_mro(kind) or (kind,)


def module_dict(module: object) -> dict[str, object]:
    """The variables of a module."""
    found = _read_module_dict(module)
    return found if type(found) is dict else _NOTHING


def module_name(its_globals: object) -> str | None:
    """``__name__`` in a module's variables; None if it is missing or not a string."""
    found = its_globals.get("__name__") if type(its_globals) is dict else None
    return found if type(found) is str else None


def code(function: types.FunctionType) -> types.CodeType:
    """The code object of a function."""
    found: types.CodeType = _read_code(function)
    return found


# From Python 3.11 on.
_qualname_of_code = vars(types.CodeType).get("co_qualname")
_read_qualname = None if _qualname_of_code is None else _qualname_of_code.__get__


def qualname(function: types.FunctionType) -> str:
    """The function's qualname from the compiler; before Python 3.11, its current one."""
    found = function.__qualname__ if _read_qualname is None else _read_qualname(code(function))
    return found if type(found) is str else ""


def qualname_of_code(code: types.CodeType) -> str:
    """The qualname from the compiler; before Python 3.11, only the name."""
    return code.co_name if _read_qualname is None else str(_read_qualname(code))
