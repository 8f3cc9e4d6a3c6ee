"""Recomputed answers: their packed tokens, their requests' traits, and tolerances."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Trait(StrEnum):
    """An event in the life of a finished request, or a place in its answer.

    Wrong answers are compared with right ones by their traits.
    """

    REUSED_NOTHING = "reused-nothing"
    REUSED_TREE = "reused-tree"
    REUSED_TRACKED = "reused-tracked"
    REUSED_SESSION = "reused-session"
    LOADED_BACK = "loaded-back"
    SEVERAL_CHUNKS = "several-chunks"
    RETRACTED = "retracted"
    REFUSED = "refused"
    ENDED_ADMISSION = "ended-admission"
    ENDED_AFTER_HIT = "ended-after-hit"
    GUESSES = "guesses"
    BESIDE_OTHERS = "beside-others"
    # Places: of the first wrong token, or of a random token in a right answer.
    PAGE_START = "page-start"
    TRACK_LENGTH = "track-length"
    BEYOND_WINDOW = "beyond-window"


_PLACES: Final[Mapping[Trait, int]] = {trait: place for place, trait in enumerate(Trait)}

# Traits that a wrong answer may inherit from a request that it reuses.  Kinds of reuse are not
# among them: every ancestor has been reused.
INHERITED: Final = (
    Trait.LOADED_BACK,
    Trait.SEVERAL_CHUNKS,
    Trait.RETRACTED,
    Trait.REFUSED,
    Trait.ENDED_ADMISSION,
    Trait.ENDED_AFTER_HIT,
    Trait.GUESSES,
    Trait.BESIDE_OTHERS,
)

# Texts that follow a count such as "17 of 17", for one or several requests.
TRAIT_WORDS: Final[Mapping[Trait, str]] = {
    Trait.REUSED_NOTHING: "had reused nothing, so that they began in a state slot of their own",
    Trait.REUSED_TREE: "had reused a prefix from the tree",
    Trait.REUSED_TRACKED: "had taken a state from a track buffer, through the tree",
    Trait.REUSED_SESSION: "had continued from a session's earlier turn",
    Trait.LOADED_BACK: "had a part of their prefix loaded back from the host",
    Trait.SEVERAL_CHUNKS: "had their prompt computed in several chunks",
    Trait.RETRACTED: "had been retracted",
    Trait.REFUSED: "had been refused admission after a match",
    Trait.ENDED_ADMISSION: "had used up the room of the step that admitted them",
    Trait.ENDED_AFTER_HIT: "had used up the room of the step that admitted them, after a hit",
    Trait.GUESSES: "had drafted tokens accepted",
    Trait.BESIDE_OTHERS: "had run beside others from the start",
    Trait.PAGE_START: "differ at the first token of a page",
    Trait.TRACK_LENGTH: "differ at a length at which decode steps save states",
    Trait.BEYOND_WINDOW: "differ beyond the first sliding window",
}


@dataclass(frozen=True)
class Measured:
    """The measured rounding of a model family, up to this size.

    ``distance`` is ten times the largest distance due to rounding in half of the recordings.
    """

    distance: float
    layers: int
    hidden_size: int


# In float32 on a CPU; docs/explanation/answers.md has the figures and the command.  Other cases are
# not compared: bfloat16, for example, has exact ties.
MEASURED: Final[Mapping[str, Measured]] = {
    "falcon_h1": Measured(1.57e-4, layers=4, hidden_size=128),
    "gpt_oss": Measured(1.14e-4, layers=4, hidden_size=128),
    "nemotron_h": Measured(1.43e-4, layers=6, hidden_size=128),
    "qwen3_5_moe_text": Measured(2.76e-4, layers=4, hidden_size=128),
    "qwen3_next": Measured(5.75e-4, layers=8, hidden_size=128),
}


def is_measured(device: str, dtype: str) -> bool:
    """Whether any tolerances are known for this device and data type."""
    return device == "cpu" and dtype == "float32"


def tolerance_of(family: str, layers: int, hidden_size: int) -> float | None:
    """The largest acceptable distance of a differing token; None if it was not measured."""
    known = MEASURED.get(family)
    if known is None or layers > known.layers or hidden_size > known.hidden_size:
        return None
    return known.distance


# Below this margin, relative to the root mean square of the router's scores, rounding may change
# the chosen expert.  A suspect counts only if no such change explains it.
ROUTING_GAP_LEAST: Final = 1e-4

# One wrong answer suffices for a finding if it exceeds the tolerance this many times; otherwise it
# takes two.
FAR_BEYOND: Final = 100.0


def pack_traits(traits: Iterable[Trait]) -> int:
    """``traits`` as an integer, with one bit per trait."""
    return sum(1 << _PLACES[trait] for trait in traits)


def has_trait(packed: int, trait: Trait) -> bool:
    """Whether ``packed``, from ``pack_traits``, includes ``trait``."""
    return bool(packed >> _PLACES[trait] & 1)


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """``tokens`` as four bytes each."""
    return array("i", tokens).tobytes()


def unpack_tokens(packed: bytes) -> list[int]:
    """The tokens in ``packed``, from ``pack_tokens``."""
    tokens = array("i")
    tokens.frombytes(packed)
    return tokens.tolist()
