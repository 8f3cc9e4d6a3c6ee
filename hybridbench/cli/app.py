"""The ``hybridbench`` command and its sub-commands; report errors as a sentence and exit code."""

from __future__ import annotations

import errno
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from hybridbench import __version__
from hybridbench.cli import (
    bisect,
    compare,
    demo,
    diagnose,
    explain,
    history,
    judge,
    nightly,
    probe,
    profiles,
    prune,
    report,
    selftest,
    serve,
    soak,
    target,
    watch,
)
from hybridbench.cli.command_group import Command, CommandGroup
from hybridbench.cli.environment import set_for_ourselves
from hybridbench.foundation.errors import ExitCode, HybridbenchError, UsageError
from hybridbench.foundation.safe_output import (
    ReaderLeftError,
    echo,
    escape_unencodable,
    give_up,
    one_line,
    print_error,
    replace_closed_streams,
)
from hybridbench.targets.own_process import ENGINE_PACKAGES, no_engine

# Refusals by a disk or a file system: not bugs of ours, so printed without a traceback.
_OF_THE_MACHINE = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EIO,
        errno.EISDIR,
        errno.ELOOP,
        errno.EMFILE,
        errno.ENAMETOOLONG,
        errno.ENFILE,
        errno.ENOSPC,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
        errno.ESTALE,
    }
)

# A shell's exit code for a program killed by SIGPIPE.  Not 0: the command did not finish.
_READER_LEFT = 128 + signal.SIGPIPE

# Columns: longer lines are hard to read.
_HELP_WIDTH = 120

app = typer.Typer(
    name="hybridbench",
    cls=CommandGroup,
    help="Soak-test and leak-regression bench for hybrid LLM inference engines.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _HELP_WIDTH},
    epilog="Every option can also be set by a variable such as HYBRIDBENCH_SOAK_DURATION, or in "
    "hybridbench.toml; see docs/reference/settings.md.",
)
app.command("demo", cls=Command)(demo.demo)
app.command("soak", cls=Command, epilog=soak.EXIT_CODES)(soak.soak)
app.command(
    "watch",
    cls=Command,
    epilog=watch.EXIT_CODES,
    context_settings={"allow_interspersed_args": False},
)(watch.watch)
app.command("serve", cls=Command, epilog=serve.EXIT_CODES)(serve.serve)
app.command("compare", cls=Command, epilog=compare.EXIT_CODES)(compare.compare)
app.command("bisect", cls=Command, epilog=bisect.EXIT_CODES)(bisect.bisect)
app.command("report", cls=Command)(report.report)
app.command("diagnose", cls=Command)(diagnose.diagnose)
app.command("judge", cls=Command, epilog=judge.EXIT_CODES)(judge.judge)
app.command("selftest", cls=Command)(selftest.selftest)
app.add_typer(nightly.app, name="nightly")
app.add_typer(target.app, name="target")
app.add_typer(profiles.app, name="profiles")
app.add_typer(probe.app, name="probe")
app.command("explain", cls=Command)(explain.explain)
app.add_typer(explain.app, name="list")
app.command("history", cls=Command)(history.history)
app.command("prune", cls=Command)(prune.prune)


def _print_version(wanted: bool) -> None:  # typer passes the value by position
    # In the option's own callback: the command's callback runs only if a sub-command is named.
    if wanted:
        echo(f"hybridbench {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            help="Print the version and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    del version


def main() -> None:
    """Entry point of the console script."""
    set_for_ourselves()
    # A soak can report on SIGUSR1 only once it has a run directory; ignore the signal until then.
    signal.signal(signal.SIGUSR1, _nothing_yet)
    replace_closed_streams()
    escape_unencodable()
    try:
        _check_working_directory()
        app()
    except HybridbenchError as error:
        print_error(error)
        sys.exit(int(error.exit_code))
    except ReaderLeftError:
        give_up(sys.stdout)
        sys.exit(_READER_LEFT)
    except KeyboardInterrupt:
        # Raised only before a run installs its signal handlers, when nothing has started.
        sys.exit(int(ExitCode.INTERRUPTED))
    except ModuleNotFoundError as error:
        if error.name is None or error.name not in ENGINE_PACKAGES:
            raise
        missing = no_engine(error.name)
        print_error(missing)
        sys.exit(int(missing.exit_code))
    except OSError as error:
        if error.errno not in _OF_THE_MACHINE:
            raise
        where = "" if error.filename is None else f"{one_line(str(error.filename))}: "
        echo(f"hybridbench: {where}{error.strerror}", err=True)
        give_up(sys.stdout)
        sys.exit(int(ExitCode.USAGE))


def _nothing_yet(number: int, frame: FrameType | None) -> None:
    """Do nothing; every child process would inherit SIG_IGN, but not this handler."""


def _check_working_directory() -> None:
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError(
            "the working directory no longer exists: change to one that does."
        ) from error
