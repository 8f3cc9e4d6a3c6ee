"""Keys and values of the full-attention layers, one row per token position.

Rows 0 to page_size - 1 are the dump page: padded tokens write there, and nothing reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hybridbench.engine.kernels.dispatch import Kernels, kernels_for
from hybridbench.engine.memory.indices import SlotInput, as_index_tensor
from hybridbench.engine.memory.mamba_pool import MambaHostCopy, MambaPool
from hybridbench.engine.memory.pinned import to_device, to_host


@dataclass(frozen=True)
class KVHostCopy:
    """Keys and values of some positions on the host, per layer."""

    keys: list[Tensor]
    values: list[Tensor]


class HybridHostCopy(NamedTuple):
    """The same for a hybrid pool; ``mamba`` is None if no states were copied."""

    kv: KVHostCopy
    mamba: MambaHostCopy | None


class MHATokenToKVPool:
    """K and V buffers, (size + page_size, heads, dim) each, one pair per layer.

    All memory is allocated and written at construction, so RSS does not grow with first use.
    """

    def __init__(  # noqa: PLR0913 - SGLang's signature, for its callers
        self,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        head_num: int,
        head_dim: int,
        layer_num: int,
        device: str | torch.device,
        *,
        kernels: Kernels | None = None,
    ) -> None:
        self.size = size
        self.page_size = page_size
        self.dtype = dtype
        self.head_num = head_num
        self.head_dim = head_dim
        self.layer_num = layer_num
        self.device = torch.device(device)
        self._kernels = kernels or kernels_for(self.device)
        shape = (size + page_size, head_num, head_dim)
        self.k_buffer = [self._touched(shape) for _ in range(layer_num)]
        self.v_buffer = [self._touched(shape) for _ in range(layer_num)]

    def set_kv_buffer(self, layer_id: int, loc: Tensor, k: Tensor, v: Tensor) -> None:
        """Store ``k`` and ``v`` [T, heads, dim] at ``loc`` [T] int64."""
        self._kernels.store_kv(self.k_buffer[layer_id], self.v_buffer[layer_id], loc, k, v)

    def get_key_buffer(self, layer_id: int) -> Tensor:
        """The pool's own key tensor of a layer, not a copy."""
        return self.k_buffer[layer_id]

    def get_value_buffer(self, layer_id: int) -> Tensor:
        """The pool's own value tensor of a layer, not a copy."""
        return self.v_buffer[layer_id]

    def get_kv_buffer(self, layer_id: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, not copies."""
        return self.k_buffer[layer_id], self.v_buffer[layer_id]

    def get_kv_size_bytes(self) -> tuple[int, int]:
        """Bytes of all keys and of all values."""
        return sum(k.nbytes for k in self.k_buffer), sum(v.nbytes for v in self.v_buffer)

    def move_kv_cache(self, tgt_loc: SlotInput, src_loc: SlotInput) -> None:
        """Copy rows ``src_loc`` to ``tgt_loc`` in every layer."""
        tgt, src = self._rows(tgt_loc), self._rows(src_loc)
        for buffer in (*self.k_buffer, *self.v_buffer):
            buffer[tgt] = buffer[src]

    def get_cpu_copy(self, indices: SlotInput) -> KVHostCopy:
        """A host copy of the rows ``indices``, owned by the caller."""
        rows = self._rows(indices)
        copies = to_host([buffer[rows] for buffer in (*self.k_buffer, *self.v_buffer)])
        return KVHostCopy(keys=copies[: self.layer_num], values=copies[self.layer_num :])

    def load_cpu_copy(self, copy: KVHostCopy, indices: SlotInput) -> None:
        """Write a host copy to the rows ``indices``, in the order of the copy."""
        rows = self._rows(indices)
        saved = [*copy.keys, *copy.values]
        for buffer, rows_saved in zip((*self.k_buffer, *self.v_buffer), saved, strict=True):
            buffer[rows] = to_device(rows_saved, self.device)

    def _rows(self, indices: SlotInput) -> Tensor:
        return as_index_tensor(indices, self.device)

    def _touched(self, shape: tuple[int, ...]) -> Tensor:
        # zeros() would map the pages lazily; writing makes them resident now.
        return torch.empty(shape, dtype=self.dtype, device=self.device).zero_()


class HybridLinearKVPool:
    """KV for the full-attention layers of a hybrid model, and the states of the others.

    Layers are identified by their number in the model; a layer without KV is refused.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - SGLang's signature, for its callers
        self,
        size: int,
        dtype: torch.dtype,
        page_size: int,
        head_num: int,
        head_dim: int,
        full_attention_layer_ids: Sequence[int],
        device: str | torch.device,
        mamba_pool: MambaPool | None,
        *,
        kernels: Kernels | None = None,
    ) -> None:
        self.size = size
        self.dtype = dtype
        self.page_size = page_size
        self.device = torch.device(device)
        self.mamba_pool = mamba_pool
        self.full_attention_layer_id_mapping = {
            layer_id: local for local, layer_id in enumerate(full_attention_layer_ids)
        }
        self.full_kv_pool = MHATokenToKVPool(
            size=size,
            page_size=page_size,
            dtype=dtype,
            head_num=head_num,
            head_dim=head_dim,
            layer_num=len(self.full_attention_layer_id_mapping),
            device=device,
            kernels=kernels,
        )

    def set_kv_buffer(self, layer_id: int, loc: Tensor, k: Tensor, v: Tensor) -> None:
        """Store ``k`` and ``v`` [T, heads, dim] of model layer ``layer_id`` at ``loc`` [T]."""
        pool, local = self._pool_of(layer_id)
        pool.set_kv_buffer(local, loc, k, v)

    def get_key_buffer(self, layer_id: int) -> Tensor:
        """The pool's own key tensor of a model layer."""
        pool, local = self._pool_of(layer_id)
        return pool.get_key_buffer(local)

    def get_value_buffer(self, layer_id: int) -> Tensor:
        """The pool's own value tensor of a model layer."""
        pool, local = self._pool_of(layer_id)
        return pool.get_value_buffer(local)

    def get_kv_buffer(self, layer_id: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a model layer, not copies."""
        pool, local = self._pool_of(layer_id)
        return pool.get_kv_buffer(local)

    def get_kv_size_bytes(self) -> tuple[int, int]:
        """Bytes of all keys and of all values."""
        return self.full_kv_pool.get_kv_size_bytes()

    def move_kv_cache(self, tgt_loc: SlotInput, src_loc: SlotInput) -> None:
        """Copy rows ``src_loc`` to ``tgt_loc`` in every full-attention layer."""
        self.full_kv_pool.move_kv_cache(tgt_loc, src_loc)

    def get_cpu_copy(
        self, indices: SlotInput, mamba_indices: SlotInput | None = None
    ) -> HybridHostCopy:
        """A host copy of KV, and of states if ``mamba_indices`` is given; owned by the caller."""
        kv = self.full_kv_pool.get_cpu_copy(indices)
        if mamba_indices is None:
            return HybridHostCopy(kv, None)
        return HybridHostCopy(kv, self._states().get_cpu_copy(mamba_indices))

    def load_cpu_copy(
        self,
        copy: HybridHostCopy,
        indices: SlotInput,
        mamba_indices: SlotInput | None = None,
    ) -> None:
        """Write a host copy back, and its states if it has any and ``mamba_indices`` is given."""
        self.full_kv_pool.load_cpu_copy(copy.kv, indices)
        if copy.mamba is not None and mamba_indices is not None:
            self._states().load_cpu_copy(copy.mamba, mamba_indices)

    def _states(self) -> MambaPool:
        if self.mamba_pool is None:
            raise ValueError("this KV pool was built without a state pool")
        return self.mamba_pool

    def _pool_of(self, layer_id: int) -> tuple[MHATokenToKVPool, int]:
        """The pool with the KV of a model layer, and the layer's number in it."""
        return self.full_kv_pool, self._transfer_full_attention_id(layer_id)

    def _transfer_full_attention_id(self, layer_id: int) -> int:
        try:
            return self.full_attention_layer_id_mapping[layer_id]
        except KeyError:
            known = list(self.full_attention_layer_id_mapping)
            raise ValueError(f"{layer_id=} not in full attention layers: {known}") from None
