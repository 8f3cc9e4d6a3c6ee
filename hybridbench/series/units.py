"""What a column measures, from its name and its values: a unit, a counter, or nothing to judge.

Tools write units into headings ("RSS (KB)", "mem_mib", "process_resident_memory_bytes"); what a
heading does not say is not guessed, and the rates are then in the column's own unit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from hybridbench.metrics import Check, Kind, Unit, spec_of

_KIB, _MIB, _GIB, _TIB = (float(2 ** (10 * power)) for power in (1, 2, 3, 4))

# Spelt out by a person: decimal and binary prefixes mean what they say.
BYTE_FACTORS: Mapping[str, float] = {
    "b": 1.0, "byte": 1.0, "bytes": 1.0,
    "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
    "kib": _KIB, "mib": _MIB, "gib": _GIB, "tib": _TIB,
    # Kubernetes leaves the B out.
    "ki": _KIB, "mi": _MIB, "gi": _GIB, "ti": _TIB,
    "page": 4096.0, "pages": 4096.0,
}  # fmt: skip
_PLAIN_UNITS: Mapping[str, Unit] = {
    "count": Unit.COUNT,
    "slots": Unit.SLOTS,
    "s": Unit.SECONDS,
    "ms": Unit.MILLISECONDS,
    "1/s": Unit.PER_SECOND,
    "ratio": Unit.RATIO,
}
# Whose row it is; a new number is a new process.
PROCESS_ID = re.compile(r"p?pid|process_start_time_seconds", re.I)
# The kernel and all that read it (ps, /proc, psutil scripts) say kB and mean 2^10.
_KERNEL_KB = "kb"
_MEMORY = re.compile(
    r"rss|pss|uss|resident|virt|vsz|vms|vmsize|memory|\bmem|mem\b|_mem|heap|swap|anon|"
    r"\breal\b|\bres\b",
    re.I,
)
_IN_BRACKETS = re.compile(r"[(\[]\s*([A-Za-z/1]+|%)\s*[)\]]\s*$")
_SUFFIX = re.compile(r"(?:^|[_.\s-])(bytes|kib|mib|gib|kb|mb|gb|ms|milliseconds|seconds)$", re.I)
# PyTorch's statistics: allocated_bytes.all.current.
_BYTES_OF = re.compile(r"(?:^|[_\s-])(bytes)(?=\.)", re.I)
_CAMEL = re.compile(r"[a-z](KiB|MiB|GiB|KB|MB|GB|Bytes)$")
_COUNTER = re.compile(
    r"[_ ](total|count|sum)$|^(num_|n_|total_)?(requests|tokens|finishes|finished|completed|"
    r"iterations?|steps?|operations|ops|calls)(_(done|served|finished|completed|processed))?$|"
    r"(prompt|output|generation|generated|input)_tokens$",
    re.I,
)
# What is there now, and no work done, although its name ends like a counter's.
_NO_COUNTER = re.compile(
    r"(^|[_. ])((rss|pss|uss|mem|memory|heap|vram|used|usage)_total|"
    r"(thread|fd|handle|object|connection|socket|process|slot|session|client)s?[_ ]count)$",
    re.I,
)
_IDLE = re.compile(
    # Without a name it is the index that pandas writes.
    r"^(|unnamed: ?\d+|p?p?id|pgid|tid|uid|gid|port|%mem|uptime.*|.*uptime|epoch|"
    r"timestamp|row|index|line|nproc|process_start_time_seconds|seed|rank|ni|pri|psr|pstate|count|(min|maj)flt/s|"
    r"(net|block) ?i/?o|(read|write)[_ ]bytes|%(usr|system|guest|wait)|"
    # Cumulative: Go's memstats, and the columns of jstat.
    r"(.*\.)?(totalalloc|mallocs|frees|lookups|num(forced)?gc|(last|next)gc|pausetotalns)|"
    r"[yfc]gct?|gct|"
    # The page cache takes it, whatever a program does.
    r"(kb)?(node_memory_)?(mem|memory|ram|swap)?_?free(_(bytes|[kmg]i?b))?|"
    # What nvidia-smi tells beside memory.
    r"memory\.(total|reserved)|(utilization|temperature|clocks|power|fan|pcie|ecc)\..*)$|_limit|^limit|limit_bytes|\blimit\b|_seconds_(total|sum)$",
    re.I,
)
# Requests in flight: vllm:num_requests_running, sglang:num_queue_reqs, tgi_queue_size.
_REQUESTS = r"(requests?|reqs?|seqs?|sequences?)"
_IN_FLIGHT = r"(running|waiting|queued?|swapped|pending|active|in_?flight|concurrent)"
_LOAD = re.compile(
    rf"(^|[:_. ])({_REQUESTS}[_ ]{_IN_FLIGHT}|{_IN_FLIGHT}[_ ]{_REQUESTS}|in_?flight|"
    r"tgi_(queue|batch_current)_size)$",
    re.I,
)
_CPU = re.compile(r"^(%?cpu.*|.*cpu|.*cpu[ _(%].*)$", re.I)
# Less of it is left, whatever holds the rest.
_LEFT = re.compile(r"(^|[_.\s-]|kb|mem)(free|avail(able)?)([_.\s(-]|$)", re.I)
_SHARE = re.compile(r"%|perc", re.I)
_SPEED = re.compile(
    r"throughput|per_s(ec|econd)?$|/s\b|qps|rps|tps|req_s|tok_s|hit_rate|goodput", re.I
)
_DELAY = re.compile(r"latency|ttft|itl|tpot|_ms\b|\(ms\)|duration|delay", re.I)
# psrecord divides by 2^20 and writes MB.
_PSRECORD = frozenset({"real (mb)", "virtual (mb)", "uss (mb)"})
_SYSSTAT_KIB = re.compile(r"kb[a-z]+")


class Role(StrEnum):
    """What a column is for."""

    LEVEL = "level"  # goes up and down: judged
    COUNTER = "counter"  # work done so far: what growth is measured against
    LOAD = "load"  # requests in flight: what moves the levels; judged if that can be decided
    SHOWN = "shown"  # known, and not worth a verdict (processor share, a limit, an id)


@dataclass(frozen=True)
class Meaning:
    """What a column measures.

    ``factor`` turns its values into ``unit``; ``known`` is False for an unknown unit, and
    ``unit`` is then a count of whatever the column counts.
    """

    role: Role
    unit: Unit
    factor: float = 1.0
    known: bool = True
    higher_is_worse: bool = True
    note: str = ""

    @property
    def decays(self) -> bool:
        """Whether its growth is decay (slower, less) and not something held."""
        return self.unit in (Unit.PER_SECOND, Unit.MILLISECONDS, Unit.SECONDS, Unit.RATIO)


def parse_unit(text: str) -> Meaning:
    """What a person means by ``text``: bytes, KiB, MB, pages, count, slots, s, ms, 1/s, ratio.

    Raises:
        ValueError: naming the text and the accepted units.
    """
    word = text.strip().lower()
    if word in BYTE_FACTORS:
        return Meaning(Role.LEVEL, Unit.BYTES, BYTE_FACTORS[word])
    if word in _PLAIN_UNITS:
        return Meaning(Role.LEVEL, _PLAIN_UNITS[word])
    raise ValueError(
        f"{text!r} is not a unit; write bytes, KiB, MiB, GiB, kB, MB, GB, pages, count, slots, s, "
        "ms, 1/s or ratio"
    )


def meaning_of(name: str) -> Meaning:
    """What the column called ``name`` measures, by its name alone."""
    if _LOAD.search(bare_name(name)):
        return Meaning(Role.LOAD, Unit.COUNT)
    spec = spec_of(name)
    if spec is not None:
        role = Role.COUNTER if spec.kind is Kind.COUNTER else Role.LEVEL
        return Meaning(role, spec.unit, higher_is_worse=spec.higher_is_worse)
    # docker: MEM USAGE / LIMIT.
    name = name.partition(" / ")[0]
    bare = bare_name(name) or name
    of_processor = (_CPU.search(bare) or _CPU.search(name)) and not _MEMORY.search(bare)
    if of_processor or _IDLE.search(bare) or _IDLE.search(name):
        return Meaning(Role.SHOWN, Unit.COUNT, known=False)
    if _SPEED.search(name):
        unit = Unit.RATIO if "rate" in name.lower() else Unit.PER_SECOND
        return Meaning(Role.LEVEL, unit, higher_is_worse=False)
    if _COUNTER.search(bare) and not _NO_COUNTER.search(bare):
        return Meaning(Role.COUNTER, Unit.COUNT)
    level = _level(name)
    return replace(level, higher_is_worse=False) if _LEFT.search(bare) else level


def is_gated(name: str) -> bool:
    """Whether ``name`` is one of our own metrics whose trend gates a run."""
    spec = spec_of(name)
    return spec is not None and spec.check is Check.TREND


def unlabelled(name: str) -> str:
    """``name`` without the labels that tell it from others of that name."""
    return name.partition("{")[0].strip()


def bare_name(name: str) -> str:
    """``name`` without the unit in brackets and without labels: ``RSS (KB)`` is RSS."""
    return _IN_BRACKETS.sub("", unlabelled(name)).strip()


def bracket_unit(name: str) -> str:
    """The unit in brackets at the end of ``name``, in lower case; empty if there is none."""
    match = _IN_BRACKETS.search(name)
    return "" if match is None else match.group(1).lower()


def _level(name: str) -> Meaning:
    if name.strip().lower() in _PSRECORD:
        return Meaning(Role.LEVEL, Unit.BYTES, _MIB, note=f"{name} is read in MiB, as psrecord has")
    if _SYSSTAT_KIB.fullmatch(name):
        return Meaning(Role.LEVEL, Unit.BYTES, _KIB)
    word = _unit_word(name)
    if word == _KERNEL_KB and _MEMORY.search(name):
        said = f"{name} is read in units of 1024 bytes, as ps and /proc mean it"
        return Meaning(Role.LEVEL, Unit.BYTES, _KIB, note=said)
    if word in BYTE_FACTORS:
        return Meaning(Role.LEVEL, Unit.BYTES, BYTE_FACTORS[word])
    if word in ("ms", "milliseconds") or (_DELAY.search(name) and word in ("", "ms")):
        return Meaning(Role.LEVEL, Unit.MILLISECONDS)
    if word in ("s", "seconds"):
        return Meaning(Role.LEVEL, Unit.SECONDS)
    if word in ("count", "slots"):
        return Meaning(Role.LEVEL, _PLAIN_UNITS[word])
    note = ""
    if _MEMORY.search(name) and not _SHARE.search(name):
        note = (
            f"the unit of {name} is unknown: its rates have no unit; set it with --metric "
            f"'{name}:KiB'"
        )
    return Meaning(Role.LEVEL, Unit.COUNT, known=False, note=note)


def _unit_word(name: str) -> str:
    head = unlabelled(name)
    for pattern in (_IN_BRACKETS, _SUFFIX, _CAMEL, _BYTES_OF):
        match = pattern.search(head)
        if match is not None:
            return match.group(1).lower()
    return ""
