"""KV of a model with sliding windows: one pool for its full layers, a smaller one for the others.

Both are indexed by full locations (those in the full pool); the smaller pool holds nothing for
locations that the window has passed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from hybridbench.engine.kernels.dispatch import Kernels
from hybridbench.engine.memory.indices import IntArray, SlotInput, as_index_array
from hybridbench.engine.memory.kv_pool import (
    HybridHostCopy,
    HybridLinearKVPool,
    KVHostCopy,
    MHATokenToKVPool,
)


class SWAKVPool(HybridLinearKVPool):
    """The KV pools of a model with sliding windows; layers have their numbers in the model.

    A step translates its locations once, with ``translate_loc_from_full_to_swa``, and passes the
    result to layers with a window; SGLang's pool translates in ``set_kv_buffer``, for each layer.

    Attributes:
        full_kv_pool: every position, for the layers with full attention.
        swa_kv_pool: ``size_swa`` positions, for the layers with a window.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - SGLang's signature, for its callers
        self,
        size: int,
        size_swa: int,
        page_size: int,
        dtype: torch.dtype,
        head_num: int,
        head_dim: int,
        swa_attention_layer_ids: Sequence[int],
        full_attention_layer_ids: Sequence[int],
        device: str | torch.device,
        *,
        kernels: Kernels | None = None,
    ) -> None:
        super().__init__(
            size,
            dtype,
            page_size,
            head_num,
            head_dim,
            full_attention_layer_ids,
            device,
            mamba_pool=None,
            kernels=kernels,
        )
        self.size_swa = size_swa
        self.swa_attention_layer_id_mapping = {
            layer_id: local for local, layer_id in enumerate(swa_attention_layer_ids)
        }
        self.swa_kv_pool = MHATokenToKVPool(
            size=size_swa,
            page_size=page_size,
            dtype=dtype,
            head_num=head_num,
            head_dim=head_dim,
            layer_num=len(self.swa_attention_layer_id_mapping),
            device=device,
            kernels=kernels,
        )
        self._page_to_swa: IntArray = np.zeros(size // page_size + 1, dtype=np.int64)

    def register_mapping(self, page_to_swa: IntArray) -> None:
        """Translate locations with ``page_to_swa``, which the allocator continues to update."""
        self._page_to_swa = page_to_swa

    def translate_loc_from_full_to_swa(self, loc: SlotInput) -> IntArray:
        """Rows of the window pool for full locations; the dump where there are none."""
        full = as_index_array(loc, self.device)
        return swa_locations(self._page_to_swa, full, self.page_size)

    def get_kv_size_bytes(self) -> tuple[int, int]:
        """Bytes of all keys and of all values in both pools."""
        full, swa = self.full_kv_pool.get_kv_size_bytes(), self.swa_kv_pool.get_kv_size_bytes()
        return full[0] + swa[0], full[1] + swa[1]

    def move_kv_cache(self, tgt_loc: SlotInput, src_loc: SlotInput) -> None:
        """Copy ``src_loc`` to ``tgt_loc`` in every layer that has both."""
        self.full_kv_pool.move_kv_cache(tgt_loc, src_loc)
        self.swa_kv_pool.move_kv_cache(
            self.translate_loc_from_full_to_swa(tgt_loc),
            self.translate_loc_from_full_to_swa(src_loc),
        )

    def get_cpu_copy(
        self, indices: SlotInput, mamba_indices: SlotInput | None = None
    ) -> HybridHostCopy:
        """A host copy of KV, full layers first, owned by the caller."""
        assert mamba_indices is None, "a model with sliding windows has no states"
        full = self.full_kv_pool.get_cpu_copy(indices)
        swa = self.swa_kv_pool.get_cpu_copy(self.translate_loc_from_full_to_swa(indices))
        return HybridHostCopy(KVHostCopy(full.keys + swa.keys, full.values + swa.values), None)

    def load_cpu_copy(
        self,
        copy: HybridHostCopy,
        indices: SlotInput,
        mamba_indices: SlotInput | None = None,
    ) -> None:
        """Write a host copy back; a position without a window location loses its window part."""
        assert mamba_indices is None, "a model with sliding windows has no states"
        (keys, values), layers = (copy.kv.keys, copy.kv.values), self.full_kv_pool.layer_num
        self.full_kv_pool.load_cpu_copy(KVHostCopy(keys[:layers], values[:layers]), indices)
        self.swa_kv_pool.load_cpu_copy(
            KVHostCopy(keys[layers:], values[layers:]),
            self.translate_loc_from_full_to_swa(indices),
        )

    def _pool_of(self, layer_id: int) -> tuple[MHATokenToKVPool, int]:
        local = self.swa_attention_layer_id_mapping.get(layer_id)
        return super()._pool_of(layer_id) if local is None else (self.swa_kv_pool, local)


def swa_locations(page_to_swa: IntArray, loc: IntArray, page_size: int) -> IntArray:
    """Window-pool locations of ``loc``; the dump (below ``page_size``) where there is none."""
    locations: IntArray = page_to_swa[loc // page_size] * page_size + loc % page_size
    return locations
