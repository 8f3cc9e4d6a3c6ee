"""Sources of a model's tensors: a seed or safetensors files.

Both return tensors by their checkpoint names, so one builder serves both.
"""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import Path
from typing import Protocol

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hybridbench.engine.models.config import ModelConfig
from hybridbench.foundation.errors import ConfigError
from hybridbench.foundation.foreign import (
    LFS_POINTER,
    ForeignDataError,
    is_file,
    open_regular,
    read_json,
)

_SINGLE_NAME = "model.safetensors"
_INDEX_NAME = f"{_SINGLE_NAME}.index.json"
_HEAD = "lm_head.weight"
_PACKED_DIMS = 3
_IGNORED = re.compile(r"mtp\..*|model\.visual\..*|.*\.rotary_emb\.inv_freq")
# Narrower types are meaningless without their separate scales.
_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


class WeightSource(Protocol):
    """Returns each tensor of a model by name."""

    def take(self, name: str) -> Tensor:
        """Return the tensor ``name`` in its stored dtype on the source's device.

        The caller owns it.
        """


class RandomWeights:
    """Seeded weights of plausible size, as defined by the model's family.

    Each tensor has its own random stream, derived from the seed and its name, so values do not
    depend on the order of building.  They do depend on the kind of device, whose generator is used.
    """

    def __init__(self, config: ModelConfig, seed: int, device: torch.device) -> None:
        self._config = config
        self._schema = config.tensors()
        self._seed = seed
        self._device = device

    def take(self, name: str) -> Tensor:
        shape = self._schema[name]
        digest = hashlib.blake2b(f"{self._seed}:{name}".encode(), digest_size=8).digest()
        generator = torch.Generator(self._device)
        generator.manual_seed(int.from_bytes(digest, "little") >> 1)
        noise = torch.randn(shape, generator=generator, device=self._device)
        return self._config.random_values(name, noise)


class CheckpointWeights:
    """The tensors of ``model.safetensors``, or of the shards that its index lists.

    Experts may be stored one by one or packed per layer, and a text model may be part of a
    multimodal one.  ``mtp.*`` (the draft head), ``model.visual.*`` (the vision tower) and RoPE
    frequencies, which are computed, are ignored.  Any other unused tensor is refused, because
    ignoring it would change the answers.

    Raises:
        ConfigError: names the path and the missing, misshapen, quantised, unused or non-finite
            tensor in one sentence.
    """

    def __init__(self, directory: Path, config: ModelConfig, device: torch.device) -> None:
        self._directory = directory
        self._schema = config.tensors()
        self._device = device
        self._files = _locate_tensors(directory)
        # Files stay open, because reopening one would parse its header again for each tensor.
        self._readers: dict[Path, _Reader] = {}
        self._check_names()
        self._check_tied_head()

    def take(self, name: str) -> Tensor:
        stored = self._stored_name(name)
        path = self._files[stored]
        try:
            tensor = self._read(path, stored, name)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{path}: tensor {stored} cannot be read ({error}).") from error
        if tensor.dtype not in _DTYPES:
            raise ConfigError(
                f"{path}: tensor {stored} is stored as {str(tensor.dtype).removeprefix('torch.')}; "
                "quantised weights are not read, save them as bfloat16 or float32."
            )
        expected = self._schema[name]
        if tuple(tensor.shape) != expected:
            raise ConfigError(
                f"{path}: tensor {stored} gives {name} the shape {list(tensor.shape)}; config.json "
                f"requires {list(expected)}."
            )
        low, high = (float(end) for end in tensor.aminmax())
        # Minus infinity in a vector is allowed: it stands for an absent attention sink.
        if not math.isfinite(high) or (tensor.dim() > 1 and not math.isfinite(low)):
            raise ConfigError(
                f"{path}: tensor {stored} contains NaN or infinite values, with which no token can "
                "be computed; download or convert the checkpoint again."
            )
        return tensor

    def _read(self, path: Path, stored: str, name: str) -> Tensor:
        reader = self._readers.get(path)
        if reader is None:
            reader = self._readers[path] = safe_open(path, framework="pt", device=str(self._device))
        if stored in {name, _multimodal_name(name)}:
            return reader.get_tensor(stored)
        return _unpack_expert(reader.get_slice(stored), name)

    def _check_names(self) -> None:
        """Refuse missing tensors, and tensors that no part of the model uses."""
        used = {_HEAD}
        for name in self._schema:
            stored = self._stored_name(name)
            if stored not in self._files:
                raise ConfigError(
                    f"{self._directory}: tensor {name} is in none of its files"
                    f"{self._instead_of(name)}."
                )
            used.add(stored)
        unused = sorted(name for name in self._files.keys() - used if not _IGNORED.fullmatch(name))
        if unused:
            others = f" and {len(unused) - 1} more are" if unused[1:] else " is"
            raise ConfigError(
                f"{self._files[unused[0]]}: tensor {unused[0]}{others} not used by a model with "
                "this config.json, which may lack the key of a bias, a norm or a quantisation; "
                "correct it, or soak a server of this model with --url."
            )

    def _instead_of(self, name: str) -> str:
        """Describe what the files hold instead of a missing tensor, and say what to do."""
        module = name.rpartition(".")[0] + "."
        renamed = [other for other in self._files if other.endswith(f".{name}")]
        renamed += [other for other in self._files if name.endswith(f".{other}")]
        parts = [other for other in self._files if other.startswith(module)]
        if not renamed and not parts:
            return "; download the files that are missing, or correct config.json"
        advice = (
            "save the model with transformers, whose names are read"
            if renamed
            else "quantised weights and adapters are not read, save the merged model as bfloat16"
        )
        return f", which hold {' and '.join(sorted(renamed or parts)[:2])} instead; {advice}"

    def _check_tied_head(self) -> None:
        """Refuse a stored head that differs from the embedding although config.json ties them."""
        if _HEAD in self._schema or _HEAD not in self._files:
            return
        embedding = next(iter(self._schema))
        self._schema[_HEAD] = self._schema[embedding]
        head = self.take(_HEAD)
        if not torch.equal(head, self.take(embedding).to(head.dtype)):
            raise ConfigError(
                f"{self._files[_HEAD]}: {_HEAD} differs from the embedding, but config.json has "
                "tie_word_embeddings; set that to false to use the stored head."
            )

    def _stored_name(self, name: str) -> str:
        """Return the name under which the files store ``name``; ``name`` itself if they do not."""
        names = [name, _packed_name(name)] if ".experts." in name else [name]
        names += [_multimodal_name(name) for name in names]
        return next((stored for stored in names if stored in self._files), name)


def _locate_tensors(directory: Path) -> dict[str, Path]:
    """Return the file of every tensor; a name in two files is refused, since values may differ."""
    index, single = directory / _INDEX_NAME, directory / _SINGLE_NAME
    if index.is_file():
        located = _locate_by_index(index)
        if single.is_file() and single not in located.values():
            raise ConfigError(
                f"{directory}: holds both {single.name} and {index.name}, which does not list it; "
                "remove the one that is out of date."
            )
        return located
    # Skip hidden files: a copy made on macOS has a hidden companion for each file.
    files = sorted(directory.glob("[!.]*.safetensors"))
    if not files:
        raise ConfigError(
            f"{directory}: there are no *.safetensors files; weights in other formats, such as "
            "GGUF and pytorch_model.bin, are not read; save them as safetensors."
        )
    found: dict[str, Path] = {}
    for path in files:
        for name in _tensor_names(path):
            if name in found:
                raise ConfigError(
                    f"{directory}: tensor {name} is in both {found[name].name} and {path.name}; "
                    "remove the file that is out of date."
                )
            found[name] = path
    return found


class _Index(msgspec.Struct):
    """The part of an index that is read: each tensor's file."""

    weight_map: dict[str, str]


def _locate_by_index(index: Path) -> dict[str, Path]:
    try:
        weight_map = msgspec.convert(read_json(index), type=_Index)
        located = {name: index.parent / file for name, file in weight_map.weight_map.items()}
    except ForeignDataError as error:
        raise ConfigError(f"{index}: {error}.") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{index}: has no readable weight_map: {error}.") from error
    for file in weight_map.weight_map.values():
        # An index comes from a download, so it must not make us open files elsewhere.
        if not file or Path(file).name != file:
            raise ConfigError(f"{index}: lists {file!r}, which is not in the checkpoint directory.")
    present: dict[Path, set[str]] = {}
    for name, path in located.items():
        if path not in present:
            if not is_file(path):
                raise ConfigError(f"{index}: lists {path.name}, which is not there.")
            present[path] = set(_tensor_names(path))
        if name not in present[path]:
            raise ConfigError(f"{index}: places tensor {name} in {path.name}, which lacks it.")
    # As in transformers, shards are read whole, including tensors that the index does not list.
    return {name: path for path, names in present.items() for name in names} | located


def _tensor_names(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as reader:
            return list(reader.keys())
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: is a link to a file that is not there.") from error
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path}: {_unreadable(path, error)}.") from error


def _unreadable(path: Path, error: Exception) -> str:
    if isinstance(error, SafetensorError):
        with open_regular(path) as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER.encode():
                return "is a Git LFS pointer; fetch the file with git lfs pull"
        return f"is not a complete safetensors file; download it again ({error})"
    return f"cannot be read as safetensors ({error})"


def _multimodal_name(name: str) -> str:
    """Map ``model.layers.0...`` to ``model.language_model.layers.0...``."""
    return name.replace("model.", "model.language_model.", 1)


def _packed_name(name: str) -> str:
    """Map ``...experts.3.up_proj.weight`` to ``...experts.gate_up_proj``."""
    prefix, _, rest = name.partition(".experts.")
    kind = "down_proj" if "down_proj" in rest else "gate_up_proj"
    return f"{prefix}.experts.{kind}"


class _Reader(Protocol):
    """The part of an open safetensors file that is used here."""

    def get_tensor(self, name: str) -> Tensor: ...

    def get_slice(self, name: str) -> _TensorSlice: ...


class _TensorSlice(Protocol):
    """The part of a safetensors slice that is used here."""

    def get_shape(self) -> list[int]: ...

    def __getitem__(self, key: tuple[int | slice, ...] | int) -> Tensor: ...


def _unpack_expert(packed: _TensorSlice, name: str) -> Tensor:
    """Return one expert's part of ``gate_up_proj`` [E, 2I, h] or ``down_proj`` [E, h, I]."""
    expert = int(name.partition(".experts.")[2].split(".")[0])
    shape = packed.get_shape()
    if len(shape) != _PACKED_DIMS or expert >= shape[0]:
        return torch.empty(0)
    if "down_proj" in name:
        return packed[expert]
    half = shape[1] // 2
    return packed[expert, :half] if "gate_proj" in name else packed[expert, half:]
