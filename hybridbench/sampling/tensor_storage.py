"""Find the torch storages that only a given set of tensors keeps alive; none without torch."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hybridbench.sampling.forked_child import MemoryRange

if TYPE_CHECKING:
    import torch


class TensorStorages:
    """All host tensors of the heap, by storage: it is freed only with the last of its tensors."""

    def __init__(
        self,
        objects: Sequence[object],
        kinds: Iterable[type],
        excluded: Sequence[MemoryRange] = (),
    ) -> None:
        """Count the tensors among ``objects``, whose types are ``kinds``; keep only numbers."""
        self._excluded = excluded
        self._kinds = _tensor_kinds(kinds)
        self._tensors_of = Counter(_address(tensor) for tensor in self._tensors(objects))

    def bytes_only_held_by(self, garbage: Sequence[object]) -> dict[type, int]:
        """Return the bytes of storages whose every tensor is in ``garbage``, by tensor type."""
        dead = self._tensors(garbage)
        in_garbage: Counter[int] = Counter()
        owner: dict[int, tuple[type, int]] = {}
        for tensor in dead:
            address = _address(tensor)
            in_garbage[address] += 1
            owner[address] = (type(tensor), tensor.untyped_storage().nbytes())
        in_garbage.update(_address(base) for base in _bases_without_holder(dead))
        freed: dict[type, int] = {}
        for address, (kind, size_bytes) in owner.items():
            if in_garbage[address] >= self._tensors_of[address]:
                freed[kind] = freed.get(kind, 0) + size_bytes
        return freed

    def _tensors(self, objects: Sequence[object]) -> list[torch.Tensor]:
        kinds = self._kinds
        if not kinds:
            return []
        found: list[torch.Tensor] = [o for o in objects if type(o) in kinds]  # type: ignore[misc]
        return [tensor for tensor in found if tensor.device.type == "cpu" and self._counts(tensor)]

    def _counts(self, tensor: torch.Tensor) -> bool:
        storage = tensor.untyped_storage()
        address, size_bytes = storage.data_ptr(), storage.nbytes()
        return size_bytes > 0 and not any(
            part.overlaps(address, size_bytes) for part in self._excluded
        )


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _bases_without_holder(dead: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors that live only because a dead view of them does.

    torch keeps the base of a view alive from C++, invisible to the collector: the base looks held
    from outside.  Its reference count shows whether anything in Python holds it too.
    """
    known = {id(tensor) for tensor in dead}
    bases = {id(tensor._base): tensor._base for tensor in dead if tensor._base is not None}
    if not bases:
        return []
    nobody = _references_to_a_base_that_nobody_holds(dead[0])
    return [
        bases[key] for key in bases if key not in known and sys.getrefcount(bases[key]) <= nobody
    ]


def _references_to_a_base_that_nobody_holds(like: torch.Tensor) -> int:
    """Measure this on a tensor of our own, because versions of torch and Python differ."""
    view = like.new_zeros(2)[:1]
    bases = {0: view._base}
    return sys.getrefcount(bases[0])


def _tensor_kinds(kinds: Iterable[type]) -> frozenset[type]:
    torch_module = sys.modules.get("torch")
    if torch_module is None:
        return frozenset()
    tensor_class: type = vars(torch_module)["Tensor"]
    return frozenset(kind for kind in kinds if issubclass(kind, tensor_class))
