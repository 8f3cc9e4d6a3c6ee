"""``python -m tests.fuzz KIND FROM TO``: run a range of seeds; print each problem only once."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.corpus import KINDS
from tests.fuzz.harness import run_case


def _main(kind: str, first: int, last: int) -> None:
    seen: Counter[str] = Counter()
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as room:
        valid = Path(room) / "valid"
        valid.mkdir()
        KINDS[kind].make(valid)
        for seed in range(first, last):
            folder = Path(room) / "case"
            at_s = time.monotonic()
            case = run_case(kind, seed, valid, folder)
            shutil.rmtree(folder)
            took_s = time.monotonic() - at_s
            if took_s > 5:
                print(f"SLOW {took_s:.1f} s {kind} {seed}: {case.did}", flush=True)
            if not case.problem:
                continue
            lines = case.problem.strip().splitlines()
            places = [line.strip() for line in lines if "/hybridbench/" in line]
            key = f"{places[-1] if places else ''} {lines[-1][:150]}"
            seen[key] += 1
            if seen[key] == 1:
                mark = "ANALYSIS" if case.in_analysis else "PROBLEM"
                print(f"{mark} {kind} {seed}: {case.did}\n   {key}", flush=True)
    took_s = time.monotonic() - begun_s
    print(f"{kind}: {last - first} cases in {took_s:.0f} s, {sum(seen.values())} problems")
    for key, count in seen.most_common():
        print(f"  {count:4} {key}")


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
