"""The probe inside programs of all kinds: it counts their objects and does not affect them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from hybridbench.sampling.probe_client import ProbeClient, ProbeError, ProbeGoneError
from tests.scenarios.probed import Ended, Looks, Probed, interpreters, probed, run

# Other interpreters are in the long suite, because each starts some thirty programs.
EVERY_PYTHON = pytest.mark.parametrize(
    "python",
    [
        pytest.param(
            path,
            id=Path(path).name,
            marks=() if path == sys.executable else pytest.mark.slow,
        )
        for path in interpreters()
    ],
)
WAITS = "\nprint('ready', flush=True)\nsys.stdin.readline()\n"
CANARY = "sk_canary_5f0e"

KEEPS = """
import collections, functools, queue, sys, threading
kept, table = [], {}
class App:
    shared = []
    def __init__(self):
        self.pending = {}
        self.recent = collections.deque(maxlen=100)
        self.jobs = queue.Queue(50)
        self.ints = {i: i for i in range(500)}
class Slotted:
    __slots__ = ("rows",)
    def __init__(self): self.rows = [1, 2, 3, 4, 5]
def make():
    cell = []
    def add(x): cell.append(x)
    return add
add = make()
@functools.lru_cache(maxsize=64)
def cached(i): return [i]
def serve(started):
    mine = list(range(70))
    started.set()
    threading.Event().wait()
def main():
    apps, slotted = [App() for _ in range(3)], [Slotted() for _ in range(10)]
    started = threading.Event()
    threading.Thread(target=serve, args=(started,), daemon=True).start()
    started.wait()
    for i in range(300):
        kept.append([i]); add(i); cached(i); table[i] = {}
        apps[0].pending[i] = {}; apps[0].recent.append(i); App.shared.append(i)
    print("ready", flush=True)
    sys.stdin.readline()
main()
"""


@EVERY_PYTHON
@pytest.mark.parametrize("frozen", [False, True], ids=["", "frozen"])
def test_containers_are_counted_by_where_code_holds_them(
    tmp_path: Path, python: str, frozen: bool
) -> None:
    program = KEEPS.replace('print("ready"', 'import gc; gc.freeze(); print("ready"')
    with probed(tmp_path, program if frozen else KEEPS, python=python) as target:
        target.read_line()
        found = target.client.census(target.pid, whole=False)
        again = target.client.census(target.pid, whole=False, known=found.state)

    own = {path: count for path, count in found.entries.items() if "__main__." in path}
    assert own == {
        "__main__.kept": 300,
        "__main__.kept[]": 300,
        "__main__.table": 300,
        "__main__.App.pending": 300,
        "__main__.App.recent": 100,
        "__main__.App.ints": 1500,
        "__main__.App.shared": 300,
        "__main__.Slotted.rows": 50,
        "__main__.make.<locals>.add<closure>.cell": 300,
        "__main__.cached<lru_cache>": 64,
        "__main__.serve<local>.mine": 70,
        "__main__.main<local>.apps": 3,
        "__main__.main<local>.slotted": 10,
    }
    assert found.containers["__main__.App.ints"] == 3
    assert found.bounds["__main__.App.recent"] == 300
    assert found.bounds["__main__.cached<lru_cache>"] == 64
    assert found.holds["__main__.table"] == "builtins.dict"
    assert found.types["__main__.App"] == 3
    assert (found.way, found.index, again.index) == ("fork", 0, 1)
    assert {path for path in again.entries if "__main__" in path} == set()
    # The list in which the forked copy holds every object is not counted as the program's.
    assert found.entries.get("builtins.list<unnamed>", 0) < 1000 < (found.tracked or 0)


@EVERY_PYTHON
def test_slices_find_what_is_long_and_never_stop_the_program_for_long(
    tmp_path: Path, python: str
) -> None:
    with probed(tmp_path, KEEPS, python=python) as target:
        target.read_line()
        found = ProbeClient(target.folder, fork_bytes_max=0).census(target.pid, whole=True)

    assert (found.way, found.whole, found.types) == ("slices", False, {})
    assert found.entries["__main__.kept"] == 300
    assert found.entries["__main__.App.shared"] == 300
    assert found.entries["__main__.cached<lru_cache>"] == 64


ANSWERS_WITH_ITS_OWN_CODE = """
import sys, types
called = []
class Proxy:
    @property
    def __class__(self): called.append("__class__"); raise RuntimeError("no request is served")
class Meta(type):
    __hash__ = None
    def __eq__(kind, other): called.append("__eq__"); raise RuntimeError("not comparable")
    def __getattribute__(kind, name):
        called.append(name); return type.__getattribute__(kind, name)
class Name(str):
    __hash__ = str.__hash__
    def __eq__(self, other): called.append("__eq__ of a name"); return str.__eq__(self, other)
class App(metaclass=Meta):
    request = Proxy()
    def __init__(self): self.rows = [1] * 500
class Unplaced:
    __module__ = 3
    def __init__(self): self.rows = [1] * 500
apps, rows = [App(), Unplaced(), Proxy()], [1] * 500
def use(): return apps, rows
moved = types.FunctionType(use.__code__, {"__name__": Name("__main__")}); moved.rows = [1] * 500
sys.modules[3] = sys.modules["module"] = Proxy()
called.clear()
print("ready", flush=True); sys.stdin.readline()
print(called, flush=True); sys.stdin.readline()
"""


@EVERY_PYTHON
def test_no_code_of_the_program_answers_for_its_objects(tmp_path: Path, python: str) -> None:
    """Lazy proxies, metaclasses and odd names are not called and do not abort the scan."""
    with probed(tmp_path, ANSWERS_WITH_ITS_OWN_CODE, python=python) as target:
        target.read_line()
        copy = target.client.census(target.pid, whole=True)
        slices = ProbeClient(target.folder, fork_bytes_max=0).census(target.pid, whole=True)
        target.say("")
        called = target.read_line()

    assert (copy.way, slices.way, called) == ("fork", "slices", "[]")
    assert copy.entries["__main__.App.rows"] == copy.entries["__main__.rows"] == 500
    assert slices.entries["__main__.rows"] == 500


LEAKS_NAMES = f"""
import sys, types
class Space: pass
space, rows, names = Space(), {{}}, types.SimpleNamespace(**{{"{CANARY}_a": [1, 2]}})
setattr(space, "{CANARY}_b", [1] * 9); space.known = [1]
setattr(Space, "{CANARY}_c", [1] * 9)
rows["{CANARY}_d"] = {{"{CANARY}_e": ["{CANARY}_f"] * 9}}
globals()["{CANARY}_g"] = ["the prompt {CANARY}"] * 9
kinds = [type("{CANARY}_h", (), {{"{CANARY}_i": [1]}})() for _ in range(9)]
exec("def {CANARY}_j({CANARY}_k=[1, 2]): return {CANARY}_k")
from collections import namedtuple
from dataclasses import make_dataclass
tuples = [namedtuple("{CANARY}_l", "{CANARY}_m")([1]) for _ in range(9)]
data = [make_dataclass("{CANARY}_n", ["{CANARY}_o"])([1]) for _ in range(9)]
module = types.ModuleType("{CANARY}_p"); module.rows = [1]; sys.modules["{CANARY}_p"] = module
def use(): return space.known, rows, names, kinds, tuples, data
"""


@EVERY_PYTHON
def test_no_key_value_or_name_made_of_data_leaves_the_process(tmp_path: Path, python: str) -> None:
    with probed(tmp_path, LEAKS_NAMES + WAITS, python=python) as target:
        target.read_line()
        forked = target.client.census(target.pid, whole=True)
        sliced = ProbeClient(target.folder, fork_bytes_max=0).census(target.pid, whole=True)
        told = repr((forked, sliced, target.client.status(target.pid)))

    assert CANARY.lower() not in told.lower()
    assert forked.entries["__main__.Space.*"] == 18
    assert forked.entries["__main__.Space.known"] == 1
    assert forked.entries["__main__.rows"] == 1


@pytest.mark.slow
@EVERY_PYTHON
def test_a_thousand_looks_change_no_count_of_an_idle_program(tmp_path: Path, python: str) -> None:
    looks = 1000 if python == sys.executable else 40
    with probed(tmp_path, "import sys" + WAITS, python=python) as target:
        target.read_line()
        client, pid = target.client, target.pid
        for _ in range(3):
            client.idle_look(pid)
            state = client.census(pid, whole=False).state
        before = client.idle_look(pid)
        for _ in range(looks):
            client.idle_look(pid)
            last = client.census(pid, whole=False).state
        after = client.idle_look(pid)

    assert last.types == state.types
    assert last.entries == state.entries
    assert after.blocks - before.blocks <= 20
    assert before.malloc_bytes is None or after.malloc_bytes is not None
    assert abs((after.malloc_bytes or 0) - (before.malloc_bytes or 0)) < 65536


PROGRAMS: Mapping[str, str] = {
    "reaps every child and counts SIGCHLD": """
        import os, signal, subprocess, time
        seen, got, none = [], [], 0
        signal.signal(signal.SIGCHLD, lambda *_: seen.append(1))
        kids = [subprocess.Popen(["sleep", "0.3"]) for _ in range(3)]
        pids, end = [kid.pid for kid in kids], time.time() + 1.5
        while time.time() < end or len(got) < 3 or not none:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
                if pid: got.append(pid in pids)
            except ChildProcessError: none += 1
            time.sleep(0.0005)
        for kid in kids: kid.returncode = 0
        print(got, 1 <= len(seen) <= 3, none > 0)
    """,
    "closes every descriptor": """
        import os, time
        for number in range(3, 1024):
            try: os.close(number)
            except OSError: pass
        low = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
        time.sleep(0.5)
        os.closerange(23, 4096)
        files = [os.open(f"file-{i}", os.O_RDWR | os.O_CREAT) for i in range(1000)]
        for file in files: os.write(file, b"x")
        time.sleep(1.0)
        # Not their numbers: a socket that is bound again has one of them for a moment.
        print(len(set(low)), [os.fstat(file).st_size for file in files] == [1] * 1000)
    """,
    "counts its descriptors": """
        import os, time
        first = os.open("/dev/null", os.O_RDONLY); time.sleep(1.0)
        print(first, os.open("/dev/null", os.O_RDONLY))
    """,
    "is interrupted by SIGALRM": """
        import os, select, signal, time
        rings = []
        signal.signal(signal.SIGALRM, lambda *_: rings.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        end, (read, _) = time.time() + 1, os.pipe()
        while time.time() < end or len(rings) <= 20: select.select([read], [], [], 0.003)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(len(rings) > 20)
    """,
    "waits for a signal": """
        import os, signal, time
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        def wait():
            os.kill(os.getpid(), signal.SIGUSR1); time.sleep(0.03)
            return int(signal.sigwait({signal.SIGUSR1}))
        print([wait() for _ in range(30)])
    """,
    "forks without exec": """
        import os, time
        ends = []
        for i in range(40):
            pid = os.fork()
            if pid == 0: time.sleep(0.01); os._exit(i % 7)
            ends.append(os.waitpid(pid, 0)[1])
        print(ends)
    """,
    "has at-fork hooks that print": """
        import os, time
        for when in ("before", "after_in_parent", "after_in_child"):
            os.register_at_fork(**{when: lambda when=when: print(when, flush=True)})
        time.sleep(1.0)
        print("end")
    """,
    "executes itself": """
        import os, sys, time
        time.sleep(0.6)
        if len(sys.argv) < 2: os.execv(sys.executable, [sys.executable, __file__, "again"])
        print("again")
    """,
    "replaces the finders of imports": """
        import sys, time
        class Finder:
            def find_spec(self, name, path=None, target=None): print("import", name)
        sys.meta_path[:] = [Finder()]
        time.sleep(1.0)
        print("end")
    """,
    "has finalizers": """
        import atexit, threading, time, weakref
        class Loud:
            def __del__(self): print("deleted")
        cycle = Loud(); cycle.me = cycle
        local = threading.local()
        def work(): local.loud = Loud(); time.sleep(1.0)
        thread = threading.Thread(target=work); thread.start()
        other = Loud(); weakref.finalize(other, print, "finalized")
        atexit.register(print, "atexit")
        thread.join(); print("end")
    """,
    "holds the import lock": """
        import _imp, time
        _imp.acquire_lock(); time.sleep(1.0); _imp.release_lock(); print("end")
    """,
    "holds the lock of logging": """
        import logging, time
        logging._lock.acquire(); time.sleep(1.0); logging._lock.release(); print("end")
    """,
    "shows its environment": """
        import gc, os, sys, threading, warnings
        ours = ("HYBRIDBENCH", "PYTHONPATH")
        print(sorted(name for name in os.environ if not name.startswith(ours)))
        print(sys.path, threading.active_count(), gc.callbacks, warnings.filters, gc.isenabled())
    """,
    "starts processes by multiprocessing": """
        import multiprocessing, time
        def double(x): time.sleep(0.3); return 2 * x
        if __name__ == "__main__":
            for way in ("spawn", "fork", "forkserver"):
                with multiprocessing.get_context(way).Pool(2) as pool:
                    print(pool.map(double, [1, 2]))
    """,
    "exits with a code": "import sys, time; time.sleep(0.5); sys.exit(3)",
    "raises": "import time; time.sleep(0.5); 1 / 0",
    "may start no process": """
        import resource, time
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0)); time.sleep(0.8); print("end")
    """,
    "may take no memory": """
        import resource, time
        with open("/proc/self/statm") as file: size = int(file.read().split()[0]) * 4096 + 300_000
        resource.setrlimit(resource.RLIMIT_AS, (size, size)); time.sleep(0.8); print("end")
    """,
    "counts its threads at the very end": """
        import os, time
        class Last:
            def __del__(self, listdir=os.listdir, write=os.write):
                write(1, b"%d" % len(listdir("/proc/self/task")))
        last = Last(); time.sleep(0.4)
    """,
}


def both_ways(
    folder: Path, program: str, python: str, *options: str, **environment: str
) -> tuple[Ended, Ended, Looks]:
    plain, _ = run(
        folder, program, with_probe=False, python=python, options=options, environment=environment
    )
    for path in folder.glob("file-*"):
        path.unlink()
    watched, looks = run(
        folder, program, with_probe=True, python=python, options=options, environment=environment
    )
    assert os.listdir(folder / "sockets") == []
    return plain, watched, looks


@EVERY_PYTHON
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_cannot_tell_that_it_is_watched(
    tmp_path: Path, python: str, program: str
) -> None:
    plain, watched, looks = both_ways(tmp_path, program, python, "-W", "error")

    assert watched == plain
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in looks.sentences)


@EVERY_PYTHON
@pytest.mark.parametrize("options", ["-I", "-E", "-S"])
def test_an_isolated_program_has_no_probe(tmp_path: Path, python: str, options: str) -> None:
    program = "import time; time.sleep(0.4); print('end')"
    plain, watched, looks = both_ways(tmp_path, program, python, options)

    assert (watched, looks.taken) == (plain, 0)


SHADOWED = {
    "prints": "print('shadowed', __name__)",
    "raises": "raise ValueError('shadowed')",
    "is missing a module": "import not_there",
}


@EVERY_PYTHON
@pytest.mark.parametrize("code", SHADOWED.values(), ids=SHADOWED)
def test_a_shadowed_sitecustomize_runs_as_ever(tmp_path: Path, python: str, code: str) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(code)
    program = "import sitecustomize; print(sitecustomize.__file__)"

    plain, watched, _ = both_ways(tmp_path, program, python, PYTHONPATH=str(own))

    assert watched == plain


@EVERY_PYTHON
def test_a_shadowed_sitecustomize_may_end_the_program(tmp_path: Path, python: str) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys; sys.exit(4)")

    plain, watched, _ = both_ways(tmp_path, "print('end')", python, PYTHONPATH=str(own))

    # Python's traceback includes the probe's file as well as the program's.
    assert (watched.code, watched.output) == (plain.code, plain.output)
    assert watched.errors.split()[-2:] == plain.errors.split()[-2:]


@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_many_short_children_are_none_the_wiser(tmp_path: Path, count: int) -> None:
    program = f"""
        import subprocess, sys
        def start(i):
            command = [sys.executable, "-c", "print(%d)" % i]
            return subprocess.run(command, capture_output=True, text=True)
        children = [start(i) for i in range({count})]
        print([(c.returncode, c.stdout, c.stderr) for c in children])
    """
    watched, _ = run(tmp_path, program, with_probe=True)

    said = [(0, f"{i}\n", "") for i in range(count)]
    assert watched == Ended(0, f"{said}\n", "")
    assert os.listdir(tmp_path / "sockets") == []


def test_each_worker_of_multiprocessing_is_counted_and_the_tracker_is_not(tmp_path: Path) -> None:
    program = """
        import multiprocessing as mp, os, sys
        def work(say, hold): say.put(os.getpid()); hold.wait()
        if __name__ == "__main__":
            pids, held = [os.getpid()], []
            for way in ("spawn", "fork", "forkserver"):
                context = mp.get_context(way); say, hold = context.Queue(), context.Event()
                child = context.Process(target=work, args=(say, hold)); child.start()
                pids.append(say.get()); held.append((child, hold, say))
            print(*pids, flush=True)
            sys.stdin.readline()
            for child, hold, _ in held: hold.set(); child.join()
    """
    with probed(tmp_path, program) as target:
        expected = {int(word) for word in target.read_line().split()}
        found = set(target.client.pids())
        # The fork server that starts the last child also belongs to the program.
        counts = [target.client.census(pid, whole=False).tracked for pid in expected]
        # Killed, it would leave its semaphores in /dev/shm.
        target.process.communicate("\n", timeout=60)

    assert expected <= found
    assert len(found - expected) <= 1
    assert all(counts)


def test_workers_that_are_forked_during_a_scan_do_not_delay_its_answer(tmp_path: Path) -> None:
    program = """
        import os, sys, time
        rows, workers, end = [[i] for i in range(100_000)], [], time.time() + 6.0
        print("ready", flush=True)
        while time.time() < end:
            workers.append(os.fork())
            if not workers[-1]: time.sleep(60.0); os._exit(0)
            time.sleep(0.03)
    """
    with probed(tmp_path, program) as target:
        target.read_line()
        found = target.client.census(target.pid, whole=False)
        waits = target.process.poll() is None

    assert found.entries["__main__.rows"] == 100_000
    assert waits, "the scan took as long as the program"


def test_a_scan_has_the_lowest_priority_unless_the_program_rests(tmp_path: Path) -> None:
    program = """
        import sys
        rows = [[i] for i in range(100_000)]
        print("ready", flush=True)
        sys.stdin.read()
    """

    def priorities(target: Probed, *, at_rest: bool) -> set[int]:
        """Return those of the program's children during a scan."""
        seen = set[int]()
        with ThreadPoolExecutor(1) as thread:
            scan = thread.submit(target.client.census, target.pid, whole=True, at_rest=at_rest)
            while not scan.done():
                with suppress(psutil.NoSuchProcess):
                    seen.update(child.nice() for child in psutil.Process(target.pid).children())
        assert scan.result().entries["__main__.rows"] == 100_000
        return seen

    with probed(tmp_path, program) as target:
        target.read_line()
        serving, resting = (priorities(target, at_rest=at_rest) for at_rest in (False, True))

    own = os.getpriority(os.PRIO_PROCESS, 0)
    # A child has that of its program for a moment.
    assert serving - {own} == {19} - {own}
    assert resting - {own} == {min(own + 5, 19)} - {own}


def test_a_reader_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    import socket

    with probed(tmp_path, "import sys" + WAITS) as target:
        target.read_line()
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(str(target.folder / f"{target.pid}.sock"))
            # It sends no request; the probe waits 5 seconds for one.
            with pytest.raises(ProbeError, match="does not answer"):
                target.client.status(target.pid)
        assert target.client.status(target.pid).blocks > 0


def test_a_process_of_another_user_is_left_alone(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    program = "import os, sys\nos.seteuid(65534)" + WAITS
    with probed(tmp_path, program) as target:
        target.read_line()
        with pytest.raises(ProbeError, match="another user"):
            target.client.census(target.pid, whole=False)
        target.say("")
        assert target.process.wait(10) == 0


def test_a_folder_that_is_not_private_gets_no_socket(tmp_path: Path) -> None:
    def look(client: ProbeClient, pid: int) -> None:
        raise AssertionError(pid)

    (tmp_path / "sockets").mkdir()
    program = "import os, time; print(os.listdir('sockets'))"
    os.chmod(tmp_path / "sockets", 0o755)
    plain, _ = run(tmp_path, program, with_probe=False)
    environment = {"HYBRIDBENCH_PROBE_DIR": str(tmp_path / "sockets")}
    from hybridbench.probe import FOLDER

    ended, _ = run(
        tmp_path,
        program,
        with_probe=False,
        environment={**environment, "PYTHONPATH": str(FOLDER)},
        look=look,
    )
    assert ended == plain


def test_a_process_that_has_ended_is_gone(tmp_path: Path) -> None:
    with probed(tmp_path, "import sys" + WAITS) as target:
        target.read_line()
        target.say("")
        target.process.wait(10)
        with pytest.raises(ProbeGoneError, match=r"^process \d+ has ended\.$"):
            target.client.status(target.pid)
        assert target.client.pids() == []
