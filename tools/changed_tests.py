"""The tests that a change can reach, for `make test-changed`:
`python -m tools.changed_tests [REVISION]`.

Prints the test files, one a line, that reach a file which differs from REVISION (`main` if not
given) in the working tree. A Python file reaches what it imports, what it starts with `-m`, and
what it names as a dotted module in a string; a test reaches a `conftest.py` above it whose fixtures
it names. A file that is not Python is reached from every Python file that names it or a folder it
is in. A file that configures all tests, such as `pyproject.toml`, is reached from all. The tests of
`tests/tidy` read every file, so they are always among those printed.
"""

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import grimp

PACKAGES = ("hybridbench", "benchmarks", "tools")
FOR_ALL = {"Makefile", "pyproject.toml", "constraints.txt"}
_DOTTED = re.compile(r"""["']((?:hybridbench|benchmarks|tools|tests)(?:\.\w+)+)(?::[\w.]+)?["']""")
_IMPORTS = re.compile(
    r"^[ ]*(?:import ([\w.]+)|from ([\w.]+) import (\([^)]*\)|.*))", flags=re.MULTILINE
)
_STARTED = re.compile(r"""["']-m["'],\s*["']([\w.]+)["']""")


def changed_files(root: Path, revision: str) -> list[str]:
    """The files, relative to `root`, that differ from the common ancestor of HEAD and `revision`.

    Files that git does not know yet, and does not ignore, are among them.

    Raises:
        SystemExit: `revision` names no commit that HEAD has an ancestor in common with.
    """

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
        )
        if done.returncode:
            reason = done.stderr.strip() or f"{revision} and HEAD have no common ancestor"
            raise SystemExit(f"test-changed: {reason}; name a revision with BASE=REVISION")
        return done.stdout.split("\n")

    base = git("merge-base", "HEAD", revision)[0]
    files = git("diff", "--name-only", "--no-renames", base)
    files += git("ls-files", "--others", "--exclude-standard")
    return sorted(filter(None, set(files)))


def reached_tests(root: Path, changed: Iterable[str]) -> list[str]:
    """The test files under `root` that reach one of the `changed` files."""
    changed = list(changed)
    sources = {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for folder in (*PACKAGES, "tests")
        for path in sorted((root / folder).rglob("*.py"))
    }
    tests = [file for file in sources if re.fullmatch(r"tests/(.*/)?test_\w+\.py", file)]
    if FOR_ALL.intersection(changed):
        return tests
    found = _reached_from(_files_that_use(sources), _touched(sources, changed))
    return [file for file in tests if file in found or file.startswith("tests/tidy/")]


def _touched(sources: Mapping[str, str], changed: Iterable[str]) -> set[str]:
    """The changed files, and the Python files that name one that is not Python."""
    touched = set(changed)
    others = [Path(file) for file in touched if not file.endswith(".py")]
    if others:
        files = "|".join(re.escape(file.name) for file in others)
        folders = "|".join(re.escape(part) for file in others for part in file.parent.parts)
        named = re.compile(rf"""\b(?:{files})\b|["'](?:[\w./-]*/)?(?:{folders or files})["']""")
        touched.update(file for file, text in sources.items() if named.search(text))
    return touched


def _files_that_use(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """For each Python file, the files that import it, start it or name it."""
    files = {_module(file): file for file in sources}
    users: dict[str, set[str]] = defaultdict(set)
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    for module in graph.modules:
        # The package itself is imported for its version or its folder, not to load runs.
        for imported in graph.find_modules_directly_imported_by(module) - {"hybridbench"}:
            users[files[imported]].add(files[module])
    for file, text in sources.items():
        started = set(_STARTED.findall(text))
        # `-m hybridbench` runs its `__main__`, and `-m hybridbench.runs.interim` the module.
        named = {*_DOTTED.findall(text), *started, *(f"{module}.__main__" for module in started)}
        named.discard("hybridbench")
        if file.startswith("tests/"):
            named.update(_imported(text))
            for folder in Path(file).parents:
                conftest = f"{folder.as_posix()}/conftest.py"
                if _takes_from(text, sources.get(conftest, "")):
                    users[conftest].add(file)
        for module in named & files.keys():
            users[files[module]].add(file)
    return users


def _takes_from(text: str, conftest: str) -> bool:
    """Whether a test with this `text` gets something from this `conftest`."""
    if "autouse=True" in conftest or "def pytest_" in conftest:
        return True
    fixtures = re.findall(r"@pytest\.fixture.*\ndef (\w+)", conftest)
    return any(re.search(rf"\b{fixture}\b", text) for fixture in fixtures)


def _imported(text: str) -> Iterator[str]:
    """The modules that a test or its helpers import, or import a name from."""
    for plain, module, names in _IMPORTS.findall(text):
        yield plain or module
        yield from (f"{module}.{name}" for name in re.findall(r"\w+", names))


def _reached_from(users: Mapping[str, set[str]], touched: Iterable[str]) -> set[str]:
    found = set()
    left = list(touched)
    while left:
        file = left.pop()
        if file not in found:
            found.add(file)
            left.extend(users.get(file, ()))
    return found


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parent.parent
    REVISION = sys.argv[1] if len(sys.argv) > 1 else "main"
    print(*reached_tests(ROOT, changed_files(ROOT, REVISION)), sep="\n")
