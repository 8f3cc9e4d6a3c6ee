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

from hybridbench.cli.app import app
from hybridbench.defects.catalog import CONTROLS, DEFECTS, PLANTED
from hybridbench.defects.defect import Defect
from hybridbench.errors import ExitCode
from hybridbench.metrics import METRICS
from hybridbench.records.codes import FindingCode
from hybridbench.records.verdict import EXIT_CODE
from hybridbench.report.advice import MEANING
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
OTHER_EXITS: Mapping[ExitCode, str] = {
    ExitCode.INTERNAL: "A bug in hybridbench.",
    ExitCode.USAGE: "A usage or configuration error; nothing was run.",
    ExitCode.REGRESSION: "A comparison found a regression.",
    ExitCode.INTERRUPTED: "Interrupted by Ctrl-C.",
    ExitCode.TERMINATED: "Ended by SIGTERM, SIGQUIT or a closed terminal.",
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
        "`block` belongs to one block of a comparison. The check says what the analysis does: the "
        "growth of a `trend` decides the verdict, an `exact` count must be zero or balance, a "
        "`driver` is an event that a finding may name. The growth of what is `shown` decides "
        "nothing; findings of another kind may rest on it: `decay` on the cost of work, "
        "`container-grows` on the length of a container."
    )
    rows = ((f"`{m.name}`", m.unit, m.kind, m.check, m.meaning) for m in METRICS)
    yield from _table(("metric", "unit", "kind", "check", "meaning"), rows)
    yield (
        "\n## Event counters\n\n`events.NAME` counts since the worker started. A profile can "
        "require an event (`assert_coverage`), a report lists what was seen of it under Coverage, "
        "and a finding can name it as its driver."
    )
    events = ((f"`{name}`", meaning) for name, meaning in COVERAGE_COUNTERS.items())
    yield from _table(("event", "counts"), events)


def _findings() -> Iterator[str]:
    yield (
        "# Findings\n\nThe `kind` of a finding in `verdict.json`, in JUnit and in waivers. "
        "[Verdicts](../explanation/verdicts.md) and [long runs](../how-to/long-runs.md) explain "
        "them. An engine's own checks may add kinds, `engine-NAME`."
    )
    yield from _table(("kind", "meaning"), ((f"`{c.value}`", c.meaning) for c in FindingCode))


def _exit_codes() -> Iterator[str]:
    yield "# Exit codes\n\nOf every command. [Verdicts](../explanation/verdicts.md) explains them."
    meanings = dict(OTHER_EXITS)
    meanings |= {EXIT_CODE[kind]: meaning for kind, meaning in MEANING.items()}
    rows = ((int(code), code.name, meanings[code]) for code in sorted(ExitCode))
    yield from _table(("exit code", "name", "meaning"), rows)


def _defects() -> Iterator[str]:
    yield (
        "# Defects\n\nInject one with `hybridbench soak --defect SLUG`; `hybridbench explain SLUG` "
        "prints its impact, its fix and the methods that it replaces."
    )
    kinds = {"Historic defects": DEFECTS, "Controls": CONTROLS, "Planted costs": PLANTED}
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
