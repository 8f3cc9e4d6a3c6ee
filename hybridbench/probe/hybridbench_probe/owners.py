"""Find containers by owner: modules, classes, functions, instances and running functions.

A container is named after the place in the code that holds it, ``module.Class.attribute``, and
counted once, at its first owner in this order.  Places with the same name are summed, so that a
name means the same in every heap scan, whatever the addresses.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterable, Iterator, Mapping

from . import containers, raw
from .limits import NOT_A_NUMBER, Limits
from .names import Names, is_from_file, is_own

NESTED = "[]"
_NESTED_MAX = 3
_HELD_MIN = 4
_HELD_SAMPLED = 64
# What a ``bytearray`` holds, instead of a type: its length is a number of bytes.
BYTES = "bytes"

_closure_of = vars(types.FunctionType)["__closure__"].__get__
_contents_of = vars(types.CellType)["cell_contents"].__get__


class Place:
    """All containers at one path.

    ``bound`` is the sum of their bounds, if each ``is_bounded``.  The place ``is_limited`` if one
    of these is only a number in the code that shortens it, or one that it or its owner has under a
    name such as ``max_size``.
    """

    __slots__ = ("bound", "containers", "entries", "is_bounded", "is_limited", "kinds")

    def __init__(self) -> None:
        self.entries = 0
        self.containers = 0
        self.bound = 0
        self.is_bounded = True
        self.is_limited = False
        self.kinds: dict[str, int] = {}


class Layout:
    """How to read the attributes of a class's instances."""

    __slots__ = ("classes", "kind", "limit", "modules", "name", "read_dict", "slots")

    def __init__(self, kind: type, name: str) -> None:
        self.kind = kind
        self.name = name
        self.read_dict: object = None
        self.limit: int | None = None
        # Of the class and its bases.
        self.classes = raw.names_of_classes(kind)
        self.modules = [module for module, _ in self.classes]
        slots = {}
        for base in reversed(raw.mro(kind)):
            variables = raw.items_of_type(base)
            self.limit = containers.limit_among(variables) or self.limit
            for attribute, value in variables:
                if type(value) is types.MemberDescriptorType and type(attribute) is str:
                    if base is not kind or raw.module_of_type(base) != "builtins":
                        slots[attribute] = value
                elif attribute == "__dict__" and type(value) is types.GetSetDescriptorType:
                    self.read_dict = value.__get__
        self.slots = list(slots.items())

    @property
    def is_empty(self) -> bool:
        """Whether instances cannot have any attributes."""
        return self.read_dict is None and not self.slots

    def attributes_of(self, found: object) -> dict[str, object] | None:
        """The dict of an instance; None if it has none."""
        try:
            attributes = None if self.read_dict is None else self.read_dict(found)  # type: ignore[operator]
        except Exception:
            return None
        return attributes if type(attributes) is dict else None

    def values_of(
        self, found: object, attributes: dict[str, object] | None
    ) -> list[tuple[str, object]]:
        """All attributes of an instance whose dict is ``attributes``: the dict's and the slots'."""
        values = [] if attributes is None else list(attributes.items())
        for name, descriptor in self.slots:
            try:
                values.append((name, descriptor.__get__(found, self.kind)))
            except AttributeError:
                continue
        return values

    def limit_among(self, values: Iterable[tuple[str, object]]) -> int | None:
        """A number under a name such as ``max_size`` of an instance, or of its class."""
        return containers.limit_among(values) or self.limit


class Places:
    """Counts containers by path as owners are visited."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.limits = Limits()
        self.kinds = containers.Kinds()
        self.table: dict[str, Place] = {}
        self.seen: set[int] = set()
        self._layouts: dict[int, tuple[type, Layout | None]] = {}
        self._kept: list[object] = []
        self._waiting: list[tuple[str, object, type, int]] = []

    # Code.

    def read_function(self, function: types.FunctionType) -> None:
        """Collect the names and limits in the code of ``function``."""
        self.names.read_function(function)
        self.limits.read_function(function)

    def read_code(self, code: types.CodeType, its_globals: dict[str, object]) -> None:
        """Collect the names and limits in running code."""
        self.names.read_code(code)
        self.limits.read_code(code, its_globals)

    # Owners.

    def visit_module(self, name: object, module: object) -> Iterator[None]:
        """Count containers in a module's variables, one per step."""
        if not issubclass(type(module), types.ModuleType) or is_own(name):
            return
        attributes = raw.module_dict(module)
        self.seen.add(id(attributes))
        prefix = self.names.module(name)
        variables = list(attributes.items())
        limit = containers.limit_among(variables)
        modules = [raw.module_name(attributes) or ""]
        for attribute, value in variables:
            own = self.limits.of(modules, attribute)
            self._count_attribute(prefix, attribute, value, None, _limit(own, limit))
            yield

    def visit_class(self, kind: type) -> Iterator[None]:
        """Count containers in a class's variables, one per step; not those of its instances."""
        prefix = ""
        # Skip its own dict and its tuple of bases.
        self.seen.update(map(id, gc.get_referents(kind)))
        variables = raw.items_of_type(kind)
        limit = containers.limit_among(variables)
        modules = [module for module, _ in raw.names_of_classes(kind)]
        for attribute, value in variables:
            if self.kinds.of(type(value)) is not None:
                prefix = prefix or self.names.type_name(kind)
                own = self.limits.of(modules, attribute, variables)
                self._count_attribute(prefix, attribute, value, kind, _limit(own, limit))
                yield

    def visit_function(self, function: types.FunctionType) -> None:
        """Count containers in a function's closure, defaults and attributes."""
        closure = _closure_of(function)
        code = function.__code__
        if closure is not None:
            for variable, cell in zip(code.co_freevars, closure):
                try:
                    value = _contents_of(cell)
                except ValueError:
                    continue
                self._count_of_function(function, "<closure>", variable, value)
        for value in function.__defaults__ or ():
            self._count_of_function(function, "<default>", "", value)
        keywords = function.__kwdefaults__
        if type(keywords) is dict:
            self.seen.add(id(keywords))
            for value in list(keywords.values()):
                self._count_of_function(function, "<default>", "", value)
        attributes = _dict_of_function(function)
        self.seen.add(id(attributes))
        for attribute, value in list(attributes.items()):
            self._count_of_function(function, "", attribute, value)

    def _count_of_function(
        self, function: types.FunctionType, part: str, variable: str, value: object
    ) -> None:
        base = self.kinds.of(type(value))
        if base is None or id(value) in self.seen:
            return
        name = self.names.function(function)
        last = f".{self.names.attribute(variable)}" if variable else ""
        limit = self.limits.of([raw.module_name(function.__globals__) or ""], variable)
        self.count(f"{name}{part}{last}", value, base, limit)

    def visit_cache(self, cache: object) -> None:
        """Count the entries of a ``functools.lru_cache``."""
        for referent in gc.get_referents(cache):
            # Skip its table and its attribute dict.
            if type(referent) is dict:
                self.seen.add(id(referent))
        function = containers.cached_function(cache)
        if function is None:
            return
        entries, bound = containers.lru_cache(cache)
        place = self.place(f"{self.names.function(function)}<lru_cache>")
        place.entries += entries
        place.containers += 1
        place.is_bounded = place.is_bounded and bound is not None
        place.bound += bound or 0

    def visit_call(
        self,
        code: types.CodeType,
        its_globals: dict[str, object],
        variables: Mapping[str, object],
    ) -> None:
        """Count containers in a running function's locals; only in a copy of the process."""
        if not is_from_file(code) or is_own(raw.module_name(its_globals)):
            return
        name = ""
        for variable, value in list(variables.items()):
            base = self.kinds.of(type(value))
            if base is not None and id(value) not in self.seen:
                name = name or self.names.code(code, its_globals, raw.qualname_of_code(code))
                limit = self.limits.of([raw.module_name(its_globals) or ""], variable)
                self.count(f"{name}<local>.{self.names.attribute(variable)}", value, base, limit)

    def layout(self, kind: type) -> Layout | None:
        """How to read instances of ``kind``; None if they have no attributes."""
        known = self._layouts.get(id(kind))
        if known is None:
            found: Layout | None = Layout(kind, self.names.type_name(kind))
            if found is not None and (
                found.is_empty or id(kind) in _NO_OWNERS or is_own(raw.module_of_type(kind))
            ):
                found = None
            known = self._layouts[id(kind)] = (kind, found)
        return known[1]

    def visit_instance(self, found: object, layout: Layout) -> None:
        """Count containers in an instance's attributes."""
        kinds, seen = self.kinds, self.seen
        attributes = layout.attributes_of(found)
        if attributes is not None:
            seen.add(id(attributes))
        values = layout.values_of(found, attributes)
        limit: int | None = None
        asked = False
        for name, value in values:
            if kinds.of(type(value)) is None or id(value) in seen:
                continue
            if not asked:
                asked, limit = True, layout.limit_among(values)
            own = self.limits.of(layout.modules, name, self._with_theirs(values))
            self._count_attribute(layout.name, name, value, layout.kind, _limit(own, limit))

    def _with_theirs(self, values: list[tuple[str, object]]) -> Iterator[tuple[object, object]]:
        """The attributes of an owner, and those of its attributes, such as its settings."""
        yield from values
        for _, value in values:
            layout = self.layout(type(value))
            if layout is not None:
                yield from layout.values_of(value, layout.attributes_of(value))

    def visit_rest(self, objects: Iterable[object]) -> None:
        """Count containers that no visited owner holds: those in C code or in unknown places."""
        for found in objects:
            base = self.kinds.of(type(found))
            if base is not None and base is not tuple and id(found) not in self.seen:
                path = f"{self.names.type_name(type(found))}<unnamed>"
                self.count(path, found, base, None, _NESTED_MAX)

    # Counting.

    def place(self, path: str) -> Place:
        """The place for ``path``, created if new."""
        place = self.table.get(path)
        if place is None:
            place = self.table[path] = Place()
        return place

    def _count_attribute(
        self,
        prefix: str,
        attribute: object,
        value: object,
        kind: type | None,
        limit: int | None,
    ) -> None:
        base = self.kinds.of(type(value))
        if base is None or id(value) in self.seen:
            return
        if type(attribute) is str and attribute.startswith("__") and attribute.endswith("__"):
            self.seen.add(id(value))
            return
        shown = self.names.attribute(attribute, kind)
        self.count(f"{prefix}.{shown}", value, base, limit)

    def count(
        self,
        path: str,
        value: object,
        base: type,
        limit: int | None = None,
        depth: int = 0,
    ) -> None:
        """Add a container unless counted before; ``descend`` counts those inside it."""
        if id(value) in self.seen:
            return
        self.seen.add(id(value))
        # Keep it alive, so that its id is not reused during the scan.
        self._kept.append(value)
        if base is not tuple:
            self._add(path, value, base, limit)
        if depth < _NESTED_MAX:
            self._waiting.append((path + NESTED, value, base, depth + 1))

    def descend(self, entries_max: int | None = None) -> Iterator[None]:
        """Count the containers inside those counted so far; one step per outer container.

        Outer containers with ``entries_max`` entries or more are skipped.
        """
        while self._waiting:
            path, value, base, depth = self._waiting.pop()
            if entries_max is None or base is tuple or containers.length(value, base) < entries_max:
                for member in containers.members(value, base):
                    member_base = self.kinds.of(type(member))
                    if member_base is not None:
                        self.count(path, member, member_base, None, depth)
            yield

    def _add(self, path: str, value: object, base: type, owners_limit: int | None) -> None:
        entries = containers.length(value, base)
        place = self.place(path)
        place.entries += entries
        place.containers += 1
        bound = containers.own_bound(value, base)
        if bound is None:
            limit = self._own_limit(value, base) or owners_limit
            if limit is not None and entries <= limit:
                place.is_limited = True
                bound = limit
        if bound is None:
            place.is_bounded = False
        else:
            place.bound += bound
        if entries < _HELD_MIN:
            return
        if base is bytearray:
            place.kinds[BYTES] = place.kinds.get(BYTES, 0) + min(entries, _HELD_SAMPLED)
        for member in containers.latest(value, base, _HELD_SAMPLED):
            name = self.names.type_name(type(member))
            place.kinds[name] = place.kinds.get(name, 0) + 1

    def _own_limit(self, value: object, base: type) -> int | None:
        """The limit that an instance of a class derived from ``base`` states; None if none."""
        layout = None if type(value) is base else self.layout(type(value))
        if layout is None:
            return None
        values = layout.values_of(value, layout.attributes_of(value))
        return _limit(self.limits.of_class(layout.classes, values), layout.limit_among(values))

    def found(self) -> dict[str, object]:
        """The counts by path, as they are sent to the client."""
        table = {path: place for path, place in self.table.items() if place.entries}
        return {
            "entries": {path: place.entries for path, place in table.items()},
            "containers": {
                path: place.containers for path, place in table.items() if place.containers != 1
            },
            "bounds": {
                path: place.bound
                for path, place in table.items()
                if place.is_bounded and not place.is_limited
            },
            "limits": {
                path: place.bound
                for path, place in table.items()
                if place.is_bounded and place.is_limited
            },
            "holds": {
                path: max(place.kinds, key=lambda name: (place.kinds[name], name))
                for path, place in table.items()
                if place.kinds
            },
        }


def _limit(coded: int | None, named: int | None) -> int | None:
    """The limit in the code of a container, or a number of its owner if that states none."""
    return named or coded if coded in (None, NOT_A_NUMBER) else coded


_NO_OWNERS = frozenset(
    map(
        id,
        (
            type,
            types.ModuleType,
            types.FunctionType,
            types.FrameType,
            types.CodeType,
            containers.LRU_CACHE,
        ),
    )
)


def _dict_of_function(function: types.FunctionType) -> dict[str, object]:
    found = function.__dict__
    return found if type(found) is dict else {}
