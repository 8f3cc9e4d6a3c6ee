"""Which defects there are, and how a name given by the user becomes one."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from pathlib import Path

from hybridbench.defects.defect import Defect
from hybridbench.defects.pr21404_mamba_adder_reject import DEFECT as MAMBA_ADDER_REJECT
from hybridbench.defects.pr25770_lru_reference_cycle import DEFECT as LRU_REFERENCE_CYCLE
from hybridbench.errors import ConfigError, UsageError

DEFECTS: tuple[Defect, ...] = (LRU_REFERENCE_CYCLE, MAMBA_ADDER_REJECT)


def find_defect(name: str) -> Defect:
    """The defect called ``name``: a slug of the catalog, or a ``.py`` file that defines ``DEFECT``.

    Raises:
        UsageError: no such slug; the nearest one is named.
        ConfigError: the file is missing, does not import, or defines no ``DEFECT``.
    """
    if name.endswith(".py"):
        return _from_file(Path(name))
    for defect in DEFECTS:
        if defect.slug == name:
            return defect
    slugs = [defect.slug for defect in DEFECTS]
    near = difflib.get_close_matches(name, slugs, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(slugs)}."
    raise UsageError(f"--defect {name}: no such defect; {hint} A .py file with DEFECT works too.")


def _from_file(path: Path) -> Defect:
    if not path.is_file():
        raise ConfigError(f"--defect {path}: no such file.")
    spec = importlib.util.spec_from_file_location(f"hybridbench_defect_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Classes defined in the file must be importable by name, as dataclasses and pickles expect.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"--defect {path}: does not import: {error!r}.") from error
    defect = vars(module).get("DEFECT")
    if not isinstance(defect, Defect):
        raise ConfigError(f"--defect {path}: the file must define DEFECT = Defect(...).")
    return defect
