"""Hooks of mkdocs: reference pages written from the code, and pages from outside docs/."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer.core import TyperCommand, TyperGroup

from hybridbench.analysis.findings.kinds import finding_kinds
from hybridbench.cli.app import app
from hybridbench.defects.catalog import CONTROLS, DEFECTS, PLANTED
from hybridbench.defects.defect import Defect
from hybridbench.foundation.errors import ExitCode
from hybridbench.foundation.metrics import METRICS
from hybridbench.workload.coverage import COVERAGE_COUNTERS
from hybridbench.workload.profile import profile_json_schema

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
SCHEMAS = ROOT / "hybridbench" / "rundir" / "schemas"
# Pages of the site that lie beside the code they describe.
OUTSIDE = ("CONTRIBUTING.md", "CHANGELOG.md", "profiles/README.md", "hybridbench/engine/README.md")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")
# What each code means for `soak` and `judge`, for `compare`, and for `nightly`; the last
# two are empty where a command never exits with it.
EXITS: Mapping[ExitCode, tuple[str, str, str]] = {
    ExitCode.CLEAN: (
        "no finding; growth of every gated metric is below its limit or tolerance",
        "no regression",
        "PASS: at least one cell passed and none failed",
    ),
    ExitCode.INTERNAL: (_BUG := "a bug in hybridbench", _BUG, _BUG),
    ExitCode.USAGE: (
        "a usage or configuration error; nothing was run",
        "the same, or versions that cannot be compared",
        "a usage or configuration error, also of the plan",
    ),
    ExitCode.LEAK: (
        "something is held that should have been freed, or grows",
        "",
        "the worst failed cell is a LEAK",
    ),
    ExitCode.DEGRADED: (
        "work got more expensive, the hit rate fell, or a threshold was missed",
        "",
        "the worst failed cell is DEGRADED",
    ),
    ExitCode.REGRESSION: (
        "",
        "a regression: a new or larger leak, a gated metric beyond its margin, a missed threshold, "
        "or a dead worker of a version other than the baseline",
        "the worst failed cell is a comparison, or a soak below `throughput_ratio`",
    ),
    ExitCode.INCONCLUSIVE: (
        "not decided: too little data, an undecided threshold, or a part of the run or of the "
        "analysis is missing",
        "not decided: the primary metric, a finding or a threshold, or the baseline crashed",
        "no cell failed, but none passed or the budget left cells out; or the worst failed cell is "
        "INCONCLUSIVE",
    ),
    ExitCode.CRASHED: (
        "the worker could not be started, died or hung, and no leak or contradiction was found",
        "a worker could not be started",
        "the worst failed cell is CRASHED",
    ),
    ExitCode.INVARIANT: (
        "the engine's state contradicts itself, or its own check raised a false alarm",
        "",
        "the worst failed cell is INVARIANT",
    ),
    ExitCode.INVALID: (
        "the run cannot support a verdict: it did not exercise or measure what it should",
        "",
        "the worst failed cell is INVALID or MISSING",
    ),
    ExitCode.CORRUPT: (
        "answers differ from those of a reference by more than rounding can explain",
        "",
        "the worst failed cell is CORRUPT",
    ),
    ExitCode.INTERRUPTED: (_INTERRUPTED := "interrupted by Ctrl-C", _INTERRUPTED, _INTERRUPTED),
    ExitCode.TERMINATED: (
        _ENDED := "ended by SIGTERM, SIGQUIT or a closed terminal",
        _ENDED,
        _ENDED,
    ),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The written pages, the generated ones and those from outside docs/."""
    from mkdocs.structure.files import File

    for name, text in reference_pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for path in OUTSIDE:
        files.append(File.generated(config, path, content=(ROOT / path).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of the repository as links of the site; a file that is no page keeps its name only."""
    here = page.file.src_uri
    in_repository = here if here in OUTSIDE else f"docs/{here}"

    def mend(link: re.Match[str]) -> str:
        text, target, anchor = link.group(1), link.group(2), link.group(3) or ""
        if "://" in target:
            return link.group()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(in_repository), target))
        path = path.removeprefix("docs/")
        if files.get_file_from_path(path) is None:
            return f"`{text.strip('`')}`" if (ROOT / path).exists() else link.group()
        return f"[{text}]({posixpath.relpath(path, posixpath.dirname(here) or '.')}{anchor})"

    return LINK.sub(mend, markdown)


def reference_pages() -> dict[str, str]:
    """The generated pages of the reference, by name."""
    return {
        "commands": "\n".join(_commands()),
        "profile-keys": "\n".join(_profile_keys()),
        "metrics": "\n".join(_metrics()),
        "findings": "\n".join(_findings()),
        "exit-codes": "\n".join(_exit_codes()),
        "defects": "\n".join(_defects()),
        "schemas": "\n".join(_schemas()),
    }


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield from ("", _row(heads), _row(["---"] * len(heads)))
    yield from (_row(row) for row in rows)
    yield ""


def _row(cells: Sequence[object]) -> str:
    said = (" ".join(str(cell).split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(said)} |"


def _commands() -> Iterator[str]:
    yield "# Commands\n\nThe help of every command, as `--help` prints it."
    yield from _command(typer.main.get_command(app), "hybridbench")


def _command(command: object, name: str) -> Iterator[str]:
    assert isinstance(command, TyperCommand | TyperGroup)
    context = command.context_class(command, info_name=name, max_content_width=100)
    yield f"\n## {name}\n\n```text\n{command.get_help(context)}\n```"
    if isinstance(command, TyperGroup):
        for word, inner in command.commands.items():
            yield from _command(inner, f"{name} {word}")


def _profile_keys() -> Iterator[str]:
    schema = profile_json_schema()
    groups = schema["$defs"]
    assert isinstance(groups, dict)
    yield (
        "# Profile keys\n\nOverride a key on the command line with `--set GROUP.KEY=VALUE`. "
        "`hybridbench profiles schema` prints the JSON Schema."
    )
    yield from _table(("key", "type", "default", "meaning"), _keys(schema, groups))
    for name, key in _groups(schema):
        group = groups[name]
        yield f"\n## {key}\n\n{_prose(group['description'])}"
        yield from _table(("key", "type", "default", "meaning"), _keys(group, groups, f"{key}."))


def _prose(docstring: str) -> str:
    return docstring.replace("``", "`")


def _groups(schema: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Each group of keys with the key that holds it, nested ones after their parent."""
    properties, groups = schema.get("properties", {}), schema.get("$defs", {})
    assert isinstance(properties, dict)
    assert isinstance(groups, dict)
    waiting = [(key, value) for key, value in properties.items()]
    seen: set[str] = set()
    while waiting:
        key, value = waiting.pop(0)
        for name in re.findall(r"#/\$defs/(\w+)", json.dumps(value)):
            if name not in seen:
                seen.add(name)
                yield name, key
                inner = groups[name].get("properties", {}).items()
                waiting[:0] = [(f"{key}.{word}", field) for word, field in inner]


def _keys(
    group: Mapping[str, object], groups: Mapping[str, Mapping[str, str]], prefix: str = ""
) -> Iterator[Sequence[object]]:
    properties, required = group.get("properties", {}), group.get("required", [])
    assert isinstance(properties, dict)
    assert isinstance(required, list)
    for key, value in properties.items():
        default = f"`{json.dumps(value['default'])}`" if "default" in value else ""
        if key in required:
            default = "required"
        elif "$ref" in value:
            default = "see below"
        # A key that holds a group means what the group means.
        described = groups[value["$ref"].rsplit("/")[-1]] if "$ref" in value else value
        yield f"`{prefix}{key}`", _type(value), default, _prose(described["description"])


def _type(value: object) -> str:
    assert isinstance(value, Mapping)
    if "$ref" in value:
        return "group"
    if "enum" in value:
        return " or ".join(f"`{choice}`" for choice in _listed(value["enum"]))
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(_type(choice) for choice in _listed(value["anyOf"])))
    if "const" in value:
        return f"`{value['const']}`"
    kind = value.get("type", "")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _listed(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


def _metrics() -> Iterator[str]:
    yield (
        "# Metrics\n\nA name with `*` is a family. The kind says how a value behaves: a `level` "
        "goes up and down, a `counter` never falls, a `window` is a statistic of the time since "
        "the last sample, a `quotient` is one counter divided by another over the judged window, a "
        "`block` belongs to one block of a comparison. The check says what the analysis does: a "
        "`trend` is a gated metric, whose growth decides the verdict; an `exact` count must be "
        "zero or balance; a `driver` is an event that a finding may name. The growth of a metric "
        "that is `shown` does not decide anything, but `decay` is based on the cost of work, and "
        "`container-grows` on the length of a container."
    )
    rows = ((f"`{m.name}`", m.unit, m.kind, m.check, m.meaning) for m in METRICS)
    yield from _table(("metric", "unit", "kind", "check", "meaning"), rows)
    yield (
        "\n## Event counters\n\nThe engine counts `events.NAME` from the start of the worker. A "
        "profile can require an event (`assert_coverage`), a report lists its count in the whole "
        "run under Coverage, and a finding can name it as its driver. A *tombstone* is a node of "
        "the prefix tree that keeps its KV but has lost its recurrent state."
    )
    events = ((f"`{name}`", meaning) for name, meaning in COVERAGE_COUNTERS.items())
    yield from _table(("event", "counts"), events)


def _findings() -> Iterator[str]:
    yield (
        "# Findings\n\nThe `kind` of a finding in `verdict.json`, in JUnit and in waivers, and the "
        "verdict that it leads to. [Verdicts](../explanation/verdicts.md) and "
        "[long runs](../how-to/long-runs.md) explain them. A check of the engine becomes an "
        "`engine-` finding only if no finding above it reports the same; other checks of an "
        "engine add kinds `engine-NAME` (INVARIANT)."
    )
    kinds = finding_kinds().values()
    rows = ((f"`{k.kind}`", k.leads_to, k.evidence.value, k.meaning) for k in kinds)
    yield from _table(("kind", "verdict", "evidence", "meaning"), rows)


def _exit_codes() -> Iterator[str]:
    yield (
        "# Exit codes\n\n[Verdicts](../explanation/verdicts.md), "
        "[comparing](../how-to/comparing.md#exit-codes) and "
        "[nightly](../how-to/nightly.md#what-fails) explain them. `report` exits with the code of "
        "what it reports."
    )
    rows = ((int(code), code.name, *EXITS[code]) for code in sorted(ExitCode))
    heads = ("code", "name", "`soak`, `judge`", "`compare`", "`nightly run`, `merge`")
    yield from _table(heads, rows)
    yield (
        "`nightly cell` exits with the code of its cell, and 0 for a neutral one. `bisect` exits "
        "with 0 if it found the commit and 13 if not. `selftest` exits with 1 if a defect was "
        "missed or a healthy run was not clean. Other commands exit with 0, 1 or 2, and with 141 "
        "if whoever reads their output closes it first (`| head`)."
    )


def _defects() -> Iterator[str]:
    yield (
        "# Defects\n\nInject one with `hybridbench soak --defect SLUG`; `hybridbench explain SLUG` "
        "prints its impact, its fix and the methods that it replaces."
    )
    kinds = {
        "Historic defects": DEFECTS,
        "Controls": CONTROLS,
        "Planted costs": PLANTED,
    }
    for title, defects in kinds.items():
        yield f"\n## {title}"
        heads = ("slug", "source", "profile", "verdict", "symptom")
        yield from _table(heads, map(_defect, defects))


def _defect(defect: Defect) -> Sequence[object]:
    verdicts = " or ".join(defect.signature.verdicts)
    return f"`{defect.slug}`", defect.source, f"`{defect.profile}`", verdicts, defect.symptom


def _schemas() -> Iterator[str]:
    yield (
        "# Record schemas\n\nThe JSON Schemas of the files that hybridbench writes; "
        "they are in `hybridbench/rundir/schemas/`."
    )
    for path in sorted(SCHEMAS.glob("*.json")):
        text = path.read_text("utf-8")
        schema = json.loads(text)
        yield f"\n## {path.name}\n\n{schema.get('description', schema['title'])}\n"
        yield f"```json\n{text.rstrip()}\n```"
