"""Remove secrets from command lines before they are stored or shown anywhere.

It redacts the values of options, variables, headers and JSON keys with secret-sounding names, the
user part of URLs, and anything that looks like a key of a known issuer.  When in doubt, it redacts
a word: command lines are shown only to identify the program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

REDACTED: Final = "[redacted]"
_CHARS_MAX: Final = 10_000

# Whole words of a name; "tokens" and "tokenizer" are ordinary words in every engine.
_HIDDEN: Final = (
    r"(?:api|access|secret|private|auth|encryption|signing|session|master|license)?keys?|"
    r"token|secrets?|passwords?|passwd|passphrase|pwd|pass|auth|authorization|credentials?|bearer|"
    r"cookie|jwt|pat|sig|signature"  # the last two sign the addresses of files in cloud storage
)
_NAME: Final = (
    rf"(?:[A-Za-z0-9.]+[-_])*(?:{_HIDDEN})"
    r"(?:[-_](?:id|value|file|path|env|base|base64|b64|hex|hash|json|pem|raw|str|string|text|\d+))*"
)
_IS_SECRET: Final = re.compile(rf"-{{0,2}}{_NAME}", re.I)
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

# NAME=value, "name": "value", name:value; for a header, everything to the next quote.
_VALUE: Final = (
    r"[\"']?\s*(?:=|:\s*))"
    r"(?:\"[^\"]*\"?|'[^']*'?|\[[^\]]*\]?|"
    r"(?i:bearer|basic|digest|token)\s+[^\s\"',;&]+|[^\s\"',;&}]+)"
)
_ASSIGNED: Final = re.compile(rf"(?<![A-Za-z0-9])({_NAME}{_VALUE}", re.I)
# AccountKey=value, as in the connection strings of cloud storage.
_CAMEL_ASSIGNED: Final = re.compile(
    rf"(?<![A-Za-z0-9])([A-Za-z0-9]*[a-z0-9](?:Key|Token|Secret|Password|Pwd|Credentials?|Signature)"
    rf"{_VALUE}"
)
_HEADER: Final = re.compile(rf"^(\s*(?:-H)?\s*{_NAME}\s*:\s*).+", re.I | re.DOTALL)
_OPTION_INSIDE: Final = re.compile(
    rf"((?<![\w-])--?{_NAME})(?:\s+(?!-)(?:\"[^\"]*\"|'[^']*'|[^\s\"']+))+", re.I
)
_URL_USER: Final = re.compile(r"\b([a-z][a-z0-9+.-]*://)[^/\s@\"']*@", re.I)
_KNOWN_KEYS: Final = re.compile(
    r"\b(?:hf_|sk-|sk_|pk-|rk_|gh[pousr]_|github_pat_|glpat-|xox[abpr]-|nvapi-|gsk_|r8_|AIza|AKIA|"
    r"ya29\.|wandb_|pypi-|dop_v1_)[A-Za-z0-9_\-.]{6,}"
    r"|\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]+(?:\.[A-Za-z0-9_\-]*)?"
    r"|(?<=bearer )\s*[^\s\"',;]+",
    re.I,
)
_FRAME: Final = re.compile(r'\s*File "[^"]{1,300}", line \d+(?:, in [\w.<>]{1,100})?')
_HEADLINE: Final = re.compile(r"Traceback \(most recent call last\):|Thread 0x[0-9a-f]+.{0,60}:")
_FATAL: Final = re.compile(
    r"Fatal Python error: [A-Z][a-z ]{1,40}|Segmentation fault|Bus error|Illegal instruction|"
    r"(?:CUDA )?out of memory|OutOfMemoryError|std::bad_alloc"
)
_ERROR: Final = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt))\b")
# The user and password option of curl, and of programs with the same options.
_USER: Final = r"(?:-u|--user|--proxy-user|--basic-auth)"
_USER_OPTION: Final = re.compile(_USER)
_USER_INSIDE: Final = re.compile(rf"((?<![\w-]){_USER}[\s=]+)[^\s:]+:\S+")
# A word with a single dash and many letters, or starting with only dashes, may be the key itself.
_OPTION: Final = re.compile(r"--[A-Za-z][^=]*|-[A-Za-z0-9_-]{0,14}")


def redacted(command: Sequence[str]) -> tuple[str, ...]:
    """Return ``command``, word by word, with ``[redacted]`` in place of secrets."""
    return tuple(_words(command))


def redacted_text(text: str) -> str:
    """Redact the secrets in a line of text, such as a command in one string."""
    text = _URL_USER.sub(rf"\1{REDACTED}@", text[:_CHARS_MAX])
    text = _KNOWN_KEYS.sub(REDACTED, text)
    text = _OPTION_INSIDE.sub(rf"\1 {REDACTED}", text)
    text = _USER_INSIDE.sub(rf"\1{REDACTED}", text)
    return _CAMEL_ASSIGNED.sub(rf"\1{REDACTED}", _ASSIGNED.sub(rf"\1{REDACTED}", text))


def without_values(lines: Sequence[str]) -> list[str]:
    """Keep only the location and the kind of error from a program's last lines.

    Messages and source lines of a traceback may quote a prompt, so they are dropped.
    """
    kept = [line for line in map(_without_value, lines) if line]
    left_out = len(lines) - len(kept)
    if left_out:
        lines_are = "line is" if left_out == 1 else "lines are"
        kept.append(f"[{left_out} more {lines_are} left out: messages may quote what was sent]")
    return kept


def _without_value(line: str) -> str:
    if _FRAME.fullmatch(line) or _HEADLINE.fullmatch(line):
        return line
    fatal, error = _FATAL.search(line), _ERROR.match(line)
    if fatal is not None:
        return fatal[0]
    return f"{error[1]}: [its message is left out]" if error is not None else ""


def _words(command: Sequence[str]) -> Iterable[str]:
    taking = False  # whether the words are values of an option with a secret-sounding name
    for before, word in zip(["", *command], command, strict=False):
        is_option = _OPTION.fullmatch(word) is not None
        is_user = ":" in word and _USER_OPTION.fullmatch(before) is not None
        if is_user or (taking and not is_option):
            yield REDACTED
            continue
        taking = is_option and _IS_SECRET.fullmatch(_CAMEL.sub("-", word)) is not None
        yield redacted_text(_HEADER.sub(rf"\1{REDACTED}", word))
