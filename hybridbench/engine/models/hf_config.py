"""Read the keys of a Hugging Face config.json, checking each one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hybridbench.engine.models.config import LayerKind
from hybridbench.foundation.errors import ConfigError
from hybridbench.foundation.foreign import ForeignDataError, read_json

# Larger than any model, and still valid as a tensor index.
_SIZE_MAX = 2**31 - 1
_LAYERS_MAX = 10_000
_SHOWN_CHARS = 60
# Written by transformers, MLX and compressed-tensors.
_QUANTISED = ("quantization_config", "quantization", "compression_config")
# Keys for parts of other families, with the values that turn them off.  Without such a part, a
# model would seem to work but give different answers.
_FOREIGN: Mapping[str, tuple[object, ...]] = {
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "use_sliding_window": (None, False),
    "is_causal": (None, True),
    "qk_layernorm": (None, False),
    "use_qk_norm": (None, False),
    "attention_multiplier": (None, 1),
    "residual_multiplier": (None, 1),
    "logits_scaling": (None, 1),
    "logit_scale": (None, 1),
}


@dataclass(frozen=True)
class ConfigFields:
    """The keys of one JSON object.

    Absent or null sizes and numbers default to the architecture's values; a null flag is false.
    """

    path: Path
    values: Mapping[str, object]

    @classmethod
    def of_checkpoint(cls, directory: Path) -> ConfigFields:
        """Read the config.json in ``directory``.

        Raises:
            ConfigError: it is missing or not a JSON object, or belongs to an adapter.
        """
        path = directory / "config.json"
        if (directory / "adapter_config.json").is_file():
            raise ConfigError(
                f"{directory}: adapter_config.json belongs to an adapter (LoRA), and adapters are "
                "not read; merge it into its base model and save that."
            )
        if path.is_symlink() and not path.is_file():
            raise ConfigError(f"{path}: links to a file that is not there; download it again.")
        if not path.is_file():
            where = f" in {directory}/snapshots" if (directory / "snapshots").is_dir() else ""
            raise ConfigError(
                f"{directory}: there is no config.json; give a Hugging Face checkpoint directory"
                f"{where} with *.safetensors (GGUF is not read) or the name of a preset."
            )
        return cls(path, _read_object(path))

    def refuse_what_is_ignored(self) -> None:
        """Raise for quantised weights and for parts that no supported family has."""
        for key in _QUANTISED:
            if self.values.get(key) is not None:
                raise self.error(
                    key,
                    "is set; quantised weights are not read: save them as bfloat16 without it, or "
                    "soak a server of this model with --url",
                )
        for key, neutral in _FOREIGN.items():
            value = self.values.get(key)
            if value not in neutral:
                raise self.error(
                    key,
                    f"is {excerpt(value)}; no model family here supports this; soak a server of "
                    "this model with --url",
                )

    def with_names(self, **older: str) -> ConfigFields:
        """Return a copy with older key names (``new="old"``) replaced by the new ones."""
        renamed = {new: self.values[old] for new, old in older.items() if old in self.values}
        return ConfigFields(self.path, {**self.values, **renamed})

    def with_defaults(self, **defaults: object) -> ConfigFields:
        """Return a copy in which ``defaults`` replace absent and null keys."""
        given = {key: value for key, value in self.values.items() if value is not None}
        return ConfigFields(self.path, {**self.values, **defaults, **given})

    def with_values(self, **values: object) -> ConfigFields:
        """Return a copy with these ``values``, which override the file's."""
        return ConfigFields(self.path, {**self.values, **values})

    def whole(self, key: str, default: int, least: int = 1) -> int:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.error(
                key, f"is {excerpt(value)}; it must be a whole number, {least} or more"
            )
        if value > _SIZE_MAX:
            raise self.error(key, f"is {value}; no model has more than {_SIZE_MAX}")
        return value

    def whole_or_null(self, key: str, null: int, absent: int) -> int:
        """Read a size for which an explicit null differs from an absent key."""
        return self.whole(key, null if key in self.values else absent)

    def number(self, key: str, default: float) -> float:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(key, f"is {excerpt(value)}; it must be a number above 0")
        if not 0 < value < float("inf"):
            raise self.error(key, f"is {value}; it must be a number above 0")
        return float(value)

    def finite_numbers(self, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
        """Read as many finite numbers, of either sign, as ``default`` has.

        A single number need not be in a list.
        """
        value = self.values.get(key)
        if value is None:
            return default
        items: list[object] = value if isinstance(value, list) else [value]
        numbers = [
            float(item)
            for item in items
            if isinstance(item, int | float) and not isinstance(item, bool)
        ]
        if not len(items) == len(numbers) == len(default) or not all(map(math.isfinite, numbers)):
            count = "a number" if len(default) == 1 else f"{len(default)} numbers"
            raise self.error(key, f"is {excerpt(value)}; it must be {count}")
        return tuple(numbers)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.error(key, f"is {excerpt(value)}; it must be true or false")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        value = self.values.get(key)
        if value is None:
            return ()
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            raise self.error(key, f"is {excerpt(value)}; it must hold whole numbers")
        return tuple(items)

    def nested(self, *keys: str) -> tuple[str, ConfigFields]:
        """Return the first of ``keys`` that is an object, with its fields; empty if none is."""
        for key in keys:
            value = self.values.get(key)
            if value is None or value == {}:
                continue
            if not isinstance(value, dict):
                raise self.error(key, "must be an object")
            return key, ConfigFields(self.path, value)
        return keys[0], ConfigFields(self.path, {})

    def layer_types(self, layers: int, *supported: LayerKind) -> tuple[LayerKind, ...] | None:
        """Read one of ``supported`` for each layer; None if the file does not list layers."""
        names = self.values.get("layer_types")
        if names is None:
            return None
        if not isinstance(names, list) or len(names) != layers:
            raise self.error("layer_types", f"must list one kind for each of the {layers} layers")
        kinds: dict[object, LayerKind] = {kind: kind for kind in supported}
        unknown = [name for name in names if not isinstance(name, str) or name not in kinds]
        if unknown:
            raise self.error(
                "layer_types",
                f"contains {excerpt(unknown[0])}; supported are {' and '.join(supported)}",
            )
        return tuple(kinds[name] for name in names)

    def layers(self, default: int) -> int:
        """Read ``num_hidden_layers``."""
        layers = self.whole("num_hidden_layers", default)
        if layers > _LAYERS_MAX:
            raise self.error(
                "num_hidden_layers", f"is {layers}; at most {_LAYERS_MAX} are supported"
            )
        return layers

    def one_of(self, key: str, default: str, *others: str) -> str:
        """Read one of these words; an absent or null key means ``default``."""
        given = self.values.get(key, default)
        if given is None:
            return default
        if not isinstance(given, str) or given not in {default, *others}:
            supported = ", ".join((default, *others[:-1])) + f" and {others[-1]}"
            raise self.error(key, f"is {excerpt(given)}; supported are {supported}")
        return given

    def eos_token_ids(self) -> tuple[int, ...]:
        """Read the ids from generation_config.json or else config.json, as in transformers."""
        path = self.path.parent / "generation_config.json"
        generation = ConfigFields(path, _read_object(path) if path.is_file() else {})
        return generation.integers("eos_token_id") or self.integers("eos_token_id")

    def require_multiple(self, many: str, few: str, sizes: tuple[int, int]) -> None:
        """Raise unless the first of ``sizes`` is a multiple of the second."""
        if sizes[0] % sizes[1]:
            raise self.error(many, f"is {sizes[0]}; it must be a multiple of {few} {sizes[1]}")

    def error(self, key: str, what: str) -> ConfigError:
        return ConfigError(f"{self.path}: {key} {what}.")


def _read_object(path: Path) -> Mapping[str, object]:
    try:
        values = read_json(path)
    except ForeignDataError as error:
        raise ConfigError(f"{path}: cannot be read as JSON: it {error}.") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}.") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: is not a JSON object.")
    return values


def excerpt(value: object) -> str:
    """Format a wrong value for a message, truncated if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
