"""From a stored run to its verdict on the console and its report on disk."""

from __future__ import annotations

from pathlib import Path


def tell(run_dir: Path) -> int:
    """Judge the run in ``run_dir``, write its derived files, print the summary.

    Returns:
        The exit code: the verdict's, or 130 or 143 for a run that was interrupted.

    Raises:
        RunDirectoryError: there is no run, or its directory cannot be written.
    """
    # Imported here: `--help` and usage errors should not wait for scipy.
    from rich.console import Console

    from hybridbench.analysis.judge import judge
    from hybridbench.report.console import render_console
    from hybridbench.report.write import write_reports
    from hybridbench.rundir.layout import REPORT_HTML
    from hybridbench.rundir.reader import read_run

    record = read_run(run_dir)
    verdict = judge(record)
    document = write_reports(run_dir, record, verdict)
    Console().print(render_console(document, run_dir / REPORT_HTML))
    return document.exit_code


def tell_so_far(run_dir: Path) -> int:
    """Judge what the run in ``run_dir`` has stored up to now, and write that beside it.

    Returns:
        0, whatever the verdict: it is not the last word.

    Raises:
        RunDirectoryError: there is no run, or its directory cannot be written.
    """
    from rich.console import Console

    from hybridbench.analysis.judge import judge_so_far
    from hybridbench.report.write import write_so_far
    from hybridbench.rundir.layout import REPORT_HTML_SO_FAR
    from hybridbench.rundir.reader import read_run

    record = read_run(run_dir)
    verdict = judge_so_far(record)
    write_so_far(run_dir, record, verdict)
    Console().print(f"{verdict.headline}\n{run_dir / REPORT_HTML_SO_FAR}", markup=False)
    return 0
