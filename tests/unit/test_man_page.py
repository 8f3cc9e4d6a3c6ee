"""The man page has everything that --help has, and groff accepts it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest
import typer
from typer.core import TyperGroup

from hybridbench.cli.app import app
from hybridbench.cli.user_settings import Context
from tools.man_page import man_page


def contexts(context: Context) -> Iterator[Context]:
    yield context
    if isinstance(context.command, TyperGroup):
        for name, below in context.command.commands.items():
            yield from contexts(
                below.make_context(name, [], parent=context, resilient_parsing=True)
            )


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(scope="module")
def sections() -> dict[str, str]:
    """The text of each command, without macro markup."""
    page = man_page()
    for mark, meant in (("\\(aq", "'"), ("\\(ga", "`"), ("\\-", "-"), ("\\&", ""), ("\\e", "\\")):
        page = page.replace(mark, meant)
    parts = page.split("\n.SS ")
    return {part.partition("\n")[0]: words(part) for part in parts[1:]}


def test_every_command_and_every_option_has_its_help(sections: dict[str, str]) -> None:
    command = typer.main.get_command(app)
    every = list(contexts(command.make_context("hybridbench", [], resilient_parsing=True)))

    assert [context.command_path for context in every] == list(sections)
    assert len(every) > 20
    for context in every:
        section = sections[context.command_path]
        assert words(context.command.help or "").replace(" .PP ", " ") in section.replace(
            " .PP ", " "
        )
        assert words(context.command.epilog or "") in section
        for parameter in context.command.get_params(context):
            record = parameter.get_help_record(context)
            if record is not None:
                assert f".B {record[0]} {words(record[1])}".rstrip() in section


def test_groff_has_nothing_to_warn_of() -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("no groff here")

    said = subprocess.run(
        [groff, "-man", "-Tutf8", "-ww", "-k"],
        input=man_page(), capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert said.stderr == ""
    assert "hybridbench" in said.stdout
