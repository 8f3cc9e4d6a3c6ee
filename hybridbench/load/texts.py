"""Turn token ids into text prompts: a word for each id, and answers exactly as received.

To the workload, a conversation is a list of token ids.  Ids below the number of words are words;
higher ids are the bytes of answers, so that the next prompt begins with exactly the text of the
last one and its answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from hybridbench.records.load import TEXT_WORDS

# In most vocabularies each of these, with a space before it, is one token.
_LIST: Final = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work number night "
    "point home water room mother area money story fact month lot right study book eye job word "
    "business issue side kind head house service friend father power hour game line end member law "
    "car city community name president team minute idea kid body information back parent face "
    "level office door health person art war history party result change morning reason research "
    "girl guy moment air teacher force education foot boy age policy music market sense nation "
    "plan college interest death experience effect use class control field development role effort "
    "rate heart drug show leader light voice wife police mind price report decision son view"
)
_SPACED: Final = tuple(f" {word}" for word in dict.fromkeys(_LIST.split()))[:TEXT_WORDS]


def answer_ids(text: str) -> list[int]:
    """Return the ids that represent an answer in a conversation."""
    return [TEXT_WORDS + byte for byte in text.encode()]


def as_text(ids: Sequence[int]) -> str:
    """Return the whole conversation as one text."""
    return "".join(text for _, text in _runs(ids))


def as_messages(ids: Sequence[int]) -> list[dict[str, str]]:
    """Return the conversation as messages: prompts from the user, answers from the assistant."""
    return [
        {"role": "assistant" if answered else "user", "content": text}
        for answered, text in _runs(ids)
    ]


def _runs(ids: Sequence[int]) -> Iterator[tuple[bool, str]]:
    for answered, run in groupby(ids, TEXT_WORDS.__le__):
        if answered:
            yield True, bytes(token - TEXT_WORDS for token in run).decode(errors="replace")
        else:
            yield False, "".join(map(_SPACED.__getitem__, run))
