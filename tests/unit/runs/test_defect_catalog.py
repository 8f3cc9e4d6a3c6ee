"""The defect catalog, as read in a process without the engine."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path

import pytest

from hybridbench.defects.catalog import CONTROLS, DEFECTS, find_defect
from hybridbench.foundation.errors import UsageError
from hybridbench.runs import defect_catalog
from hybridbench.runs.defect_catalog import described_defects
from hybridbench.targets.background_process import Answer
from hybridbench.worker.defect_catalog import main


@pytest.fixture
def answered_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the child's code in this process: importing the engine in a child takes seconds."""

    def answer_of(command: Sequence[str], patience_s: float) -> Answer:
        del patience_s
        output, errors = io.TextIOWrapper(io.BytesIO()), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = main(command[3:])
        return Answer(code, output.buffer.getvalue(), errors.getvalue(), timed_out=False)

    monkeypatch.setattr(defect_catalog, "answer_of", answer_of)


@pytest.mark.usefixtures("answered_here")
def test_all_defects_and_controls_are_described_without_their_patches() -> None:
    described = described_defects()

    assert [d.slug for d in described] == [d.slug for d in (*DEFECTS, *CONTROLS)]
    assert [d.signature for d in described] == [d.signature for d in (*DEFECTS, *CONTROLS)]
    assert all(d.patches == () for d in described)


def test_names_mean_what_they_mean_to_the_worker_and_files_may_print(tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text(
        "from hybridbench.defects.defect import Defect, Signature\n"
        "print('imported')\n"
        "SAID = Signature(('LEAK',), ('a',), 'b', 'c', 'd')\n"
        "DEFECT = Defect('mine', 'me', 's', 'smoke', SAID, ())\n",
        encoding="utf-8",
    )

    paced, mine = described_defects("unreleased-mappings@200MiB/h", str(source))

    assert paced.slug == "unreleased-mappings@200MiB/h"
    assert paced.overrides == find_defect("unreleased-mappings").overrides
    assert mine.slug == "mine"


@pytest.mark.usefixtures("answered_here")
def test_what_cannot_be_is_refused_in_the_catalogs_own_sentence() -> None:
    with pytest.raises(UsageError, match="did you mean mamba-adder-reject"):
        described_defects("mamba-adder-rejct")
