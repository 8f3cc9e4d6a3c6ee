"""Find profiles and models: shipped in the wheel or the checkout, or the user's own."""

from __future__ import annotations

import re
from pathlib import Path

import hybridbench
from hybridbench.foundation.errors import ConfigError, ErrorCode, full_stop, nearest
from hybridbench.workload.profile import Profile

DEFAULT_PROFILE = "chat-churn"
# Plans of `hybridbench nightly` are shipped next to the profiles that they name.
_PLANS = frozenset({"nightly", "weekly"})
_PRESET = re.compile(r'^    "([a-z0-9.-]+)":', re.MULTILINE)


def load_profile(name_or_path: str | Path) -> Profile:
    """Return the shipped profile of that name, or the one in that file.

    Anything that looks like a path (a separator, or the ending .yaml or .yml) is read as a file;
    anything else is looked up as a name first, then as a file in the current directory.

    Raises:
        ConfigError: one sentence; for an unknown name it lists the shipped ones.
    """
    text = str(name_or_path)
    looks_like_path = "/" in text or text.endswith((".yaml", ".yml"))
    if isinstance(name_or_path, Path) or looks_like_path:
        path = Path(text)
        if not path.exists():
            hint = nearest(path.stem, list_profiles())
            raise ConfigError(
                full_stop(f"{text}: there is no such file; {hint}"), code=ErrorCode.NOT_FOUND
            )
        return Profile.from_yaml(path)
    shipped = list_profiles()
    if text in shipped:
        return Profile.from_yaml(shipped[text])
    if Path(text).is_file():
        return Profile.from_yaml(Path(text))
    raise ConfigError(
        full_stop(f"there is no profile {text!r}; {nearest(text, shipped)}"),
        code=ErrorCode.UNKNOWN_NAME,
    )


def list_profiles() -> dict[str, Path]:
    """Return the shipped profiles, name to file, sorted by name."""
    return {name: path for name, path in _files() if name not in _PLANS}


def list_plans() -> dict[str, Path]:
    """Return the shipped nightly plans, name to file, sorted by name."""
    return {name: path for name, path in _files() if name in _PLANS}


def list_models() -> list[str]:
    """Return the engine's presets, in source order.

    The source is parsed as text: importing its modules would import torch, which takes seconds and
    belongs in the worker.
    """
    source = Path(hybridbench.__file__).parent / "engine" / "models" / "presets.py"
    return _PRESET.findall(source.read_text("utf-8"))


def model_fault(name_or_path: str) -> str | None:
    """Return half a sentence on why no worker would find this model; None if it may exist.

    Only the worker can tell whether a directory holds a checkpoint.
    """
    presets = list_models()
    if name_or_path in presets or Path(name_or_path).is_dir():
        return None
    if Path(name_or_path).is_file():
        return (
            f"{name_or_path} is a file; give the directory that holds config.json and *.safetensors"
        )
    if "/" in name_or_path:
        return f"there is no directory {name_or_path}; nothing is downloaded"
    return f"{name_or_path!r} is neither a preset nor a directory; {nearest(name_or_path, presets)}"


def _files() -> list[tuple[str, Path]]:
    return sorted((path.stem, path) for path in profiles_dir().glob("*.yaml"))


def profiles_dir() -> Path:
    """Return the folder of shipped profiles and traces.

    Raises:
        ConfigError: if the installation lacks it.
    """
    package = Path(hybridbench.__file__).parent
    # The wheel has them inside the package; a checkout has them next to it.
    for candidate in (package / "profiles", package.parent / "profiles"):
        if candidate.is_dir():
            return candidate
    raise ConfigError(f"{package / 'profiles'}: the shipped profiles are missing; reinstall.")
