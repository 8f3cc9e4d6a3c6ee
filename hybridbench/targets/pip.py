"""Run pip in its own environment; resolve a release's requirements before fetching wheels."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from hybridbench.foundation.errors import ConfigError, ErrorCode
from hybridbench.records.prepared import Package

# The first version that reads only the METADATA inside a wheel, by range requests; the option for
# that is experimental, hence the upper bound.
_PIP: Final = "pip>=25.1,<27"
_METADATA_ONLY: Final = ("--use-feature=fast-deps",)
_REQUIREMENTS: Final = "requirements.txt"
_REPORT: Final = "report.json"
_NONE_FOUND = re.compile(
    r"Could not find a version that satisfies the requirement (\S+).*?"
    r"\(from versions: ([^)]*)\)",
    re.DOTALL,
)
_CONFLICT = re.compile(r"Cannot install (.+?) because these package versions")
# What failed, and for which package, as when a source distribution's METADATA cannot be built.
_FAILED_STEP = re.compile("\N{MULTIPLICATION SIGN} (.+?)[.]?\n╰─> (.+)")
_AVAILABLE = re.compile(r"^Available versions: (.+)$", re.MULTILINE)
_SHOWN_VERSIONS: Final = 6


class _Archive(msgspec.Struct, frozen=True):
    hashes: dict[str, str] = {}
    hash: str = ""  # pip before 23.1, which Debian 12 has: sha256=...

    @property
    def sha256(self) -> str:
        name, _, digest = self.hash.partition("=")
        return self.hashes.get("sha256") or (digest if name == "sha256" else "")


class _Download(msgspec.Struct, frozen=True):
    url: str
    archive_info: _Archive = _Archive()


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    version: str
    author: str = ""
    author_email: str = ""
    maintainer: str = ""
    maintainer_email: str = ""
    requires_dist: list[str] = []


class _Found(msgspec.Struct, frozen=True):
    download_info: _Download
    metadata: _Metadata


class _Report(msgspec.Struct, frozen=True):
    """The output of ``pip install --report``; its keys are documented and versioned."""

    install: list[_Found]


@dataclass(frozen=True)
class Release:
    """The METADATA of one release."""

    package: Package
    author: str
    requirements: Sequence[str]


class Pip:
    """The pip of the environment at ``python``; ``folder`` holds its log and working files.

    Its own configuration decides which indexes and folders it searches, as usual.
    """

    def __init__(self, python: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self._python = python
        self._folder = folder
        # A user installation is not part of the environment, whatever pip's default is.
        self._environment = {**environment, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def renew(self) -> bool:
        """Install a pip that can read METADATA alone; return False if none is available.

        Other versions fetch the whole wheel to read it.
        """
        # The interpreter's setuptools would remain beside the one that a release pins.
        self._run("uninstall", "--yes", "--quiet", "setuptools")
        return self._run("install", "--quiet", "--upgrade", _PIP).returncode == 0

    def release(self, package: str, version: str) -> Release:
        """Read the METADATA of ``package``.

        Raises:
            ConfigError: there is no such release for this interpreter and machine.
        """
        (found,) = self._resolved("--no-deps", f"{package}=={version}")
        metadata = found.metadata
        author = metadata.author or metadata.maintainer
        # Of "Somebody <address>", a report needs only the name.
        named = (metadata.author_email or metadata.maintainer_email).split("<")[0]
        return Release(_package(found), author or named.strip(), metadata.requires_dist)

    def releases(self, package: str) -> list[str]:
        """List the releases of ``package`` for this interpreter and machine, oldest first.

        Pre-releases are left out, as pip does.

        Raises:
            ConfigError: pip found none.
        """
        done = self._run("index", "versions", package)
        found = _AVAILABLE.search(done.stdout)
        if done.returncode or found is None:
            raise self._failure(done.stderr)
        return sorted((one.strip() for one in found[1].split(",")), key=Version)

    def plan(self, requirements: Sequence[str], needed_by: str) -> list[Package]:
        """Resolve every distribution that ``requirements`` need; install nothing.

        Raises:
            ConfigError: a requirement is not available here, or two requirements conflict.
        """
        path = self._folder / _REQUIREMENTS
        path.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        found = self._resolved("--requirement", str(path), needed_by=needed_by)
        path.unlink()
        return [_package(one) for one in found]

    def install(self, packages: Sequence[Package]) -> None:
        """Install exactly these wheels, checked by hash; reinstall a partly installed one.

        Raises:
            ConfigError: pip failed; the same call may succeed later.
        """
        path = self._folder / _REQUIREMENTS
        lines = [f"{one.name}=={one.version} --hash=sha256:{one.sha256}" for one in packages]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        done = self._run(
            "install", "--quiet", "--no-deps", "--ignore-installed", "--require-hashes",
            "--requirement", str(path),
        )  # fmt: skip
        if done.returncode:
            raise self._failure(
                done.stderr,
                f"{self._folder / 'pip.log'} has more; run the same command again to go on",
            )
        path.unlink()

    def _resolved(self, *arguments: str, needed_by: str = "") -> list[_Found]:
        report = self._folder / _REPORT
        done = self._run(
            "install", "--quiet", "--dry-run", "--ignore-installed", "--report", str(report),
            *_METADATA_ONLY, *arguments,
        )  # fmt: skip
        if done.returncode:
            raise (
                _absent(done.stderr, needed_by)
                or self._conflict(done.stderr, needed_by)
                or self._failure(done.stderr)
            )
        found = msgspec.json.decode(report.read_bytes(), type=_Report).install
        report.unlink()
        return found

    def _conflict(self, output: str, needed_by: str) -> ConfigError | None:
        """Explain a conflict: requirements that no versions satisfy together.

        If a constraint of the user is involved, pip also calls it a conflict when one of them is
        not available at all; then name that one.
        """
        match = _CONFLICT.search(output)
        if match is None:
            return None
        requirements = re.split(r", | and ", match[1])
        for one in requirements:
            alone = self._run(
                "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed",
                *_METADATA_ONLY, one, PIP_CONSTRAINT=os.devnull,
            )  # fmt: skip
            absent = _absent(alone.stderr, needed_by)
            if absent is not None:
                return absent
        return ConfigError(
            f"{needed_by} cannot be installed here: pip finds no versions that satisfy "
            f"{match[1]} and your constraints together.",
            code=ErrorCode.MISMATCH,
        )

    def _run(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(self._python), "-m", "pip", "--no-input", *arguments],
            env={**self._environment, **settings},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        with (self._folder / "pip.log").open("a", encoding="utf-8") as log:
            log.write(f"$ pip {' '.join(arguments)}\n{done.stdout}{done.stderr}")
        return done

    def _failure(self, output: str, remedy: str = "") -> ConfigError:
        advice = f"; {remedy}" if remedy else ""
        return ConfigError(f"pip failed: {_reason(output)}{advice}.")


def _reason(output: str) -> str:
    """Return the line of pip's output that says what went wrong, without its final period."""
    lines = [line.strip() for line in output.splitlines()]
    errors = [line.removeprefix("ERROR:") for line in lines if line.startswith("ERROR:")]
    steps = [f"{what}: {which}" for what, which in _FAILED_STEP.findall(output)]
    others = [line for line in lines if line and not line.startswith("WARNING:")]
    reason = (errors or steps[-1:] or others[-1:] or ["it printed nothing"])[0]
    return reason.strip().rstrip(".")


def without(requirements: Sequence[str], names: Collection[str]) -> list[str]:
    """Remove the distributions ``names`` (canonical) from ``requirements``."""
    return [one for one in requirements if requirement_name(one) not in names]


def requirement_name(requirement: str) -> str:
    """Return the canonical name of the required distribution; "" if it cannot be parsed."""
    try:
        return canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement:
        return ""


def _package(found: _Found) -> Package:
    sha256 = found.download_info.archive_info.sha256
    return Package(found.metadata.name, found.metadata.version, sha256)


def _absent(output: str, needed_by: str) -> ConfigError | None:
    """Return an error for a requirement that pip could not find; None for other failures."""
    match = _NONE_FOUND.search(output)
    if match is None:
        return None
    requirement, versions = match.groups()
    there = [one.strip() for one in versions.split(",") if one.strip() not in ("", "none")]
    # For a pin such as 2.11.0+cpu, list only other CPU builds.
    _, plus, local = requirement.partition("+")
    shown = [one for one in there if plus and one.endswith(plus + local)] or there
    newest = ", ".join(shown[-_SHOWN_VERSIONS:])
    finds = f"only {newest}" if len(shown) <= _SHOWN_VERSIONS else f"{newest} and older ones"
    if not there:
        finds = "none of its releases"
    if not needed_by:
        return ConfigError(
            f"pip finds no {requirement} for this Python and machine, but {finds}.",
            code=ErrorCode.UNKNOWN_NAME,
        )
    return ConfigError(
        f"{needed_by} needs {requirement}, and pip finds {finds}: give pip an index or a folder "
        "that has it (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS), or choose another release.",
        code=ErrorCode.NOT_FOUND,
    )
