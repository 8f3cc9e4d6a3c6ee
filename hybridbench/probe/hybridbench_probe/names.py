"""Decide which names may leave the process: only those in its code.

An attribute, a class or a module can be named after data: ``setattr(namespace, user, [])``,
``type(title, (), {})``, ``SimpleNamespace(**request)``.  Such a name is replaced by a star.  Only
code from files counts, not code that ``exec`` compiled from a string, as it does for named tuples
and data classes with run-time names.
"""

from __future__ import annotations

import sys
import types

from . import raw

HIDDEN = "*"
_LENGTH_MAX = 80
_HEAP_TYPE = 1 << 9
# Some of these modules have a different ``__name__``.
_ALWAYS_IMPORTED = frozenset(sys.builtin_module_names) | {
    "__main__",
    "__mp_main__",  # the program's own module in a worker of multiprocessing
    "_frozen_importlib",
    "_frozen_importlib_external",
    "importlib._bootstrap",
    "importlib._bootstrap_external",
}
_OWN_PACKAGE = __name__.rpartition(".")[0]

_flags_of_type = type.__dict__["__flags__"].__get__
_qualname_of_type = type.__dict__["__qualname__"].__get__


class Names:
    """The names in the program's current code.  Never calls a method of a program object."""

    def __init__(self) -> None:
        self._of_code: set[str] = set()
        self._codes: set[int] = set()
        self._types: dict[int, tuple[type, str]] = {}
        self._modules: dict[str, bool] = {}
        self._descriptors: dict[int, frozenset[str]] = {}

    def read_function(self, function: types.FunctionType) -> None:
        """Collect the names in the code of ``function``."""
        self.read_code(raw.code(function))

    def read_code(self, code: types.CodeType) -> None:
        """Collect the names in a code object and those nested in it."""
        waiting = [code]
        while waiting:
            code = waiting.pop()
            if id(code) in self._codes or not is_from_file(code):
                continue
            self._codes.add(id(code))
            for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
                self._of_code.update(names)
            self._of_code.add(code.co_name)
            waiting += [found for found in code.co_consts if type(found) is types.CodeType]

    def attribute(self, name: object, of: type | None = None) -> str:
        """``name``, or a star unless it occurs in code or the class ``of`` declares it."""
        if type(name) is not str or len(name) > _LENGTH_MAX:
            return HIDDEN
        if name in self._of_code:
            return name
        return name if of is not None and name in self._declared(of) else HIDDEN

    def module(self, name: object) -> str:
        """``name``, or a star unless it is an imported module."""
        if type(name) is not str:
            return HIDDEN
        if name not in self._modules:
            self._modules[name] = _is_imported(name)
        return name if self._modules[name] else HIDDEN

    def type_name(self, kind: type) -> str:
        """``module.qualname`` of a class, or of its nearest base if it was named at run time."""
        known = self._types.get(id(kind))
        if known is None:
            known = self._types[id(kind)] = (kind, self._type(kind))
        return known[1]

    def function(self, function: types.FunctionType) -> str:
        """``module.qualname`` of a function."""
        return self.code(raw.code(function), function.__globals__, raw.qualname(function))

    def code(self, code: types.CodeType, its_globals: object, qualname: str = "") -> str:
        """``module.qualname`` of a function from its code and globals, as in a frame."""
        module = raw.module_name(its_globals)
        if not is_from_file(code):
            return f"{self.module(module)}.{HIDDEN}"
        if code.co_name == "<module>":
            return self.module(module)
        if qualname.rpartition(".")[2] != code.co_name:
            qualname = code.co_name
        return f"{self.module(module)}.{self._qualified(qualname)}"

    def _qualified(self, qualname: str) -> str:
        return ".".join(
            part if part.startswith("<") and part.endswith(">") else self.attribute(part)
            for part in qualname.split(".")
        )

    def _type(self, kind: type) -> str:
        if self._is_named_by_code(kind):
            module = raw.module_of_type(kind)
            # The module of a static C type is a literal in C, whether or not it is imported.
            is_static = not _flags_of_type(kind) & _HEAP_TYPE
            return f"{module if is_static else self.module(module)}.{_qualname_of_type(kind)}"
        for base in raw.mro(kind)[1:]:
            if self._is_named_by_code(base):
                return f"{self.type_name(base)}<subclass>"
        return HIDDEN

    def _is_named_by_code(self, kind: type) -> bool:
        try:
            qualname = _qualname_of_type(kind)
        except AttributeError:
            return False
        module = raw.module_of_type(kind)
        if type(qualname) is not str or module is None:
            return False
        if not _flags_of_type(kind) & _HEAP_TYPE:
            return True
        if all(part == "<locals>" or part in self._of_code for part in qualname.split(".")):
            return True
        return self._has_method_from_file(kind, module, qualname) or _is_of_extension(
            kind, module, qualname
        )

    def _has_method_from_file(self, kind: type, module: str, qualname: str) -> bool:
        """Whether a method's compiled qualname confirms the class name.

        Methods of another module do not count: those were renamed later, as ``namedtuple`` does.
        """
        for function in raw.functions_of_type(kind):
            code = raw.code(function)
            is_below = raw.qualname(function) == f"{qualname}.{code.co_name}"
            if is_below and is_from_file(code) and raw.module_name(function.__globals__) == module:
                return True
        return False

    def _declared(self, kind: type) -> frozenset[str]:
        """Slots and annotated fields of ``kind`` and its bases, as far as code names these."""
        known = self._descriptors.get(id(kind))
        if known is None:
            found: set[str] = set()
            for base in raw.mro(kind):
                if self._is_named_by_code(base):
                    found.update(
                        name
                        for name, value in raw.items_of_type(base)
                        if type(name) is str and type(value) is types.MemberDescriptorType
                    )
                    annotated = raw.type_variable(base, "__annotations__")
                    if type(annotated) is dict:
                        found.update(name for name in list(annotated) if type(name) is str)
            known = self._descriptors[id(kind)] = frozenset(found)
        return known


def is_from_file(code: types.CodeType) -> bool:
    """Whether ``code`` was compiled from a file, or is part of the interpreter."""
    name = code.co_filename
    return not name.startswith("<") or name.startswith("<frozen ")


def is_own(module: object) -> bool:
    """Whether ``module`` is the name of one of the probe's modules."""
    if type(module) is not str:
        return False
    return module == _OWN_PACKAGE or module.startswith(_OWN_PACKAGE + ".")


def _is_imported(name: str) -> bool:
    module = sys.modules.get(name)
    if name in _ALWAYS_IMPORTED:
        return True
    if type(module) is not types.ModuleType or len(name) > 2 * _LENGTH_MAX:
        return False
    attributes = raw.module_dict(module)
    return attributes.get("__spec__") is not None and raw.module_name(attributes) == name


def _is_of_extension(kind: type, module: str, qualname: str) -> bool:
    """Whether an extension module has the class under that name."""
    found = sys.modules.get(module)
    if type(found) is not types.ModuleType:
        return False
    attributes = raw.module_dict(found)
    file = attributes.get("__file__")
    if type(file) is str and not file.endswith(".so"):
        return False
    return attributes.get("__spec__") is not None and attributes.get(qualname) is kind
