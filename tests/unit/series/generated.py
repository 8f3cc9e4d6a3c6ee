"""Recordings in the formats of many tools, of processes with known growth.

For each input a tool, one to three owners (at most one leaks), a unit, an order of the rows, gaps
and a locale are drawn.  Some mix owners without naming each row's owner; these must be refused.
"""

# ruff: noqa: E501  (lines are as wide as the tools print them)

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np

MIB = 2.0**20
SAMPLES, STEP_S = 240, 60.0
_ZERO = datetime(2026, 11, 19, 21, 30, tzinfo=UTC)
_NAMES = ("python3", "nginx", "redis-server")


@dataclass(frozen=True)
class Recording:
    """The measured bytes of each owner at each time."""

    rng: np.random.Generator
    t_s: np.ndarray
    owners: dict[str, np.ndarray]

    def at(self, index: int) -> datetime:
        return _ZERO + timedelta(seconds=float(self.t_s[index]))

    @property
    def size(self) -> int:
        return int(self.t_s.size)

    @property
    def one(self) -> np.ndarray:
        return next(iter(self.owners.values()))


@dataclass(frozen=True)
class Generated:
    """One input: its text, the options it needs, and the right verdict."""

    tool: str
    text: str
    leaks: dict[str, float]  # growth in MiB/h of each leaking owner
    interval_s: float | None = None
    refused: str = ""  # text of the refusal, if no verdict can be right
    notes: list[str] = field(default_factory=list)


def generate(seed: int) -> Generated:
    """Generate the input of ``seed``; tools alternate, so that every slice has all of them."""
    rng = np.random.default_rng(seed)
    makers = list(_MAKERS.items())
    tool, (most, maker) = makers[seed % len(makers)]
    count = int(rng.integers(1, most + 1)) if most > 0 else 2
    leaking = int(rng.integers(0, 2 * count))
    t = np.arange(SAMPLES) * STEP_S
    if rng.random() < 0.3 and tool in _TIMED:
        first = int(rng.integers(60, 150))
        t = np.delete(t, slice(first, first + int(rng.integers(5, 30))))
    owners: dict[str, np.ndarray] = {}
    leaks: dict[str, float] = {}
    for index in range(count):
        rate = float(rng.uniform(60, 600)) if index == leaking else 0.0
        base = float(rng.uniform(300, 3000)) * (1 + 3 * index)
        noise = rng.normal(0, 0.15, t.size)
        owners[_NAMES[index]] = np.round((base + rate * t / 3600 + noise) * MIB / 4096) * 4096
        if rate:
            leaks[_NAMES[index]] = rate
    text, interval_s = maker(Recording(rng, t, owners))
    refused = "levels|share their time|overlap" if most < 0 else ""
    return Generated(tool, text, leaks, interval_s, refused)


def _kib(value: float) -> int:
    return round(value / 1024)


def _pid(name: str) -> int:
    return 4000 + _NAMES.index(name)


def _date(rng: np.random.Generator) -> Callable[[datetime], str]:
    """Draw the date format of a file."""
    forms: list[Callable[[datetime], str]] = [
        lambda d: d.strftime("%Y-%m-%dT%H:%M:%SZ"),
        lambda d: d.strftime("%Y-%m-%d %H:%M:%S"),
        lambda d: d.strftime("%Y/%m/%d %H:%M:%S.000"),
        lambda d: d.strftime("%d.%m.%Y %H:%M:%S"),
        lambda d: d.strftime("%m/%d/%Y %I:%M:%S %p"),
        lambda d: d.strftime("%d/%m/%Y %H:%M:%S"),
        lambda d: f"{d.timestamp():.0f}",
        lambda d: f"{d.timestamp() * 1000:.0f}",
    ]
    return forms[int(rng.integers(len(forms)))]


def _ordered(rng: np.random.Generator, rows: list[str]) -> list[str]:
    """Return the rows as recorded, newest first, or shuffled."""
    kind = int(rng.integers(0, 3))
    if kind == 1:
        return rows[::-1]
    return [rows[i] for i in rng.permutation(len(rows))] if kind == 2 else rows


def _unit(rng: np.random.Generator) -> tuple[str, float]:
    units = (("rss_bytes", 1.0), ("RSS (KB)", 1024.0), ("mem_mib", MIB), ("mem_gib", 1024 * MIB))
    return units[int(rng.integers(len(units)))]


def _csv(r: Recording) -> tuple[str, None]:
    date, (name, factor) = _date(r.rng), _unit(r.rng)
    rows = [f'"{date(r.at(i))}",{r.one[i] / factor:.6f}' for i in range(r.size)]
    return "\n".join([f"time,{name}", *_ordered(r.rng, rows)]) + "\n", None


def _semicolons(r: Recording) -> tuple[str, None]:
    date, (name, factor) = _date(r.rng), _unit(r.rng)
    rows = [
        f"{date(r.at(i))};" + f"{r.one[i] / factor:.6f}".replace(".", ",") for i in range(r.size)
    ]
    return "\n".join([f"Zeit;{name}", *rows]) + "\n", None


def _named_unit(r: Recording) -> tuple[str, None]:
    names = {"minutes": 60.0, "uptime_hours": 3600.0, "time (minutes)": 60.0, "elapsed_s": 1.0,
             "elapsed_ms": 1e-3, "days": 86400.0}  # fmt: skip
    name = list(names)[int(r.rng.integers(len(names)))]
    rows = [f"{r.t_s[i] / names[name]:.6f}\t{r.one[i]:.0f}" for i in range(r.size)]
    return "\n".join([f"{name}\trss_bytes", *rows]) + "\n", None


def _epochs(r: Recording) -> tuple[str, float]:
    rows = [f"{i + 1},{r.one[i] / MIB:.3f}" for i in range(r.size)]
    return "\n".join([f"{('epoch', 'step')[int(r.rng.integers(2))]},gpu_mem_mib", *rows]), STEP_S


def _long(r: Recording) -> tuple[str, None]:
    date, key = _date(r.rng), ("deployment", "user", "job", "who")[int(r.rng.integers(4))]
    rows = [
        f"{date(r.at(i))},{name},{v[i]:.0f}" for i in range(r.size) for name, v in r.owners.items()
    ]
    return "\n".join([f"time,{key},rss_bytes", *rows]) + "\n", None


def _untimed_owners(r: Recording) -> tuple[str, float]:
    key = ("COMMAND", "team", "service")[int(r.rng.integers(3))]
    head = f"{key:<16}{'RSS':>12}"
    blocks = [
        "\n".join([head, *(f"{name:<16}{_kib(v[i]):>12}" for name, v in r.owners.items())])
        for i in range(r.size)
    ]
    return "\n".join(blocks) + "\n", STEP_S


def _bare(r: Recording) -> tuple[str, None]:
    date = _date(r.rng)
    mark = "," if r.rng.random() < 0.5 else " "
    unit = int(r.rng.integers(3))
    values = [
        (f"{_kib(v) // 4 * 4}", f"{v / MIB:.3f}MiB", f"{v / MIB:.3f}MiB / 7.653GiB")[unit]
        for v in r.one
    ]
    return "\n".join(f"{date(r.at(i))}{mark}{values[i]}" for i in range(r.size)) + "\n", None


def _ps_aux(r: Recording) -> tuple[str, None]:
    heading = "USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND"
    grepped = r.rng.random() < 0.5
    lines = []
    for i in range(r.size):
        lines += [r.at(i).strftime("%a %b %d %H:%M:%S UTC %Y"), *([] if grepped else [heading])]
        lines += [
            f"root {_pid(n):>8}  1.0  2.0 9000000 {_kib(v[i])} ?        Sl   Nov18   0:20 {n} -m x y"
            for n, v in r.owners.items()
        ]
    return "\n".join(lines) + "\n", None


def _top(r: Recording) -> tuple[str, None]:
    lines = []
    for i in range(r.size):
        lines += [
            f"top - {r.at(i):%H:%M:%S} up 10 days,  3:22,  1 user,  load average: 1.0, 1.0, 1.0",
            "Tasks:   2 total,   0 running,   2 sleeping,   0 stopped,   0 zombie",
            "MiB Mem :  63258.0 total,  56043.9 free,   4911.6 used,   2954.9 buff/cache", "",
            "    PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     TIME+ COMMAND",
        ]  # fmt: skip
        lines += [
            f"{_pid(n):>7} root      20   0 {v[i] / MIB / 1024:.4f}g {_res(v[i])} 9000 S  99.0   5.0   1:02.0{i % 9} {n}"
            for n, v in r.owners.items()
        ]
    return "\n".join(lines) + "\n", None


def _res(value: float) -> str:
    return str(_kib(value)) if value < 999_999 * 1024 else f"{value / MIB / 1024:.4f}g"


def _pidstat(r: Recording) -> tuple[str, None]:
    locale = int(r.rng.integers(4))
    clock = ("%H:%M:%S", "%I:%M:%S %p", "%H:%M:%S", "%H时%M分%S秒")[locale]
    average = ("Average:", "Average:", "Durchschn.:", "平均时间:")[locale]
    heading = "      UID       PID  minflt/s  majflt/s     VSZ     RSS   %MEM  Command"
    zero = "0,27" if locale == 2 else "0.27"
    lines = (
        [] if r.rng.random() < 0.3 else ["Linux 6.1.0 (host) \t11/19/2026 \t_x86_64_\t(8 CPU)", ""]
    )
    for i in range(r.size):
        if i % 20 == 0:
            lines += [f"{r.at(i):{clock}}{heading}"]
        lines += [
            f"{r.at(i):{clock}}     1000 {_pid(n):>9} {zero:>9} {zero:>9} 9000000 {_kib(v[i])} {zero:>6}  {n}"
            for n, v in r.owners.items()
        ]
    lines += [
        f"{average}     1000 {_pid(n):>9} {zero} {zero} 9000000 5 {zero}  {n}" for n in r.owners
    ]
    return "\n".join(lines) + "\n", None


def _smem(r: Recording) -> tuple[str, float]:
    lines = []
    for i in range(r.size):
        lines.append(
            "  PID User     Command                         Swap      USS      PSS      RSS "
        )
        lines += [
            f"{_pid(n):>5} root     {f'/usr/bin/{n} -k start':<27} {0:>8} {_kib(v[i]):>8} {_kib(v[i]):>8} {_kib(v[i]):>8} "
            for n, v in r.owners.items()
        ]
    return "\n".join(lines) + "\n", STEP_S


def _docker(r: Recording) -> tuple[str, float]:
    head = "CONTAINER ID   NAME              CPU %     MEM USAGE / LIMIT     MEM %     NET I/O           PIDS"
    lines = []
    for i in range(r.size):
        lines.append(head)
        lines += [
            f"{_pid(n):012x}   {n:<15}   {r.rng.random():.2f}%     {v[i] / MIB:.1f}MiB / 76.67GiB   13.0%     7.66kB / 6.08kB   8"
            for n, v in r.owners.items()
        ]
    return "\n".join(lines) + "\n", STEP_S


def _kubectl(r: Recording) -> tuple[str, None]:
    lines = []
    for i in range(r.size):
        lines += [
            f"{r.at(i).timestamp():.0f}",
            "POD        NAME           CPU(cores)   MEMORY(bytes)",
        ]
        lines += [
            f"web-abc    {n:<14} {5 + i % 3}m           {v[i] / MIB:.0f}Mi"
            for n, v in r.owners.items()
        ]
    return "\n".join(lines) + "\n", None


def _nvidia(r: Recording) -> tuple[str, None]:
    bare = r.rng.random() < 0.3
    lines = ["timestamp, index, name, memory.used [MiB], utilization.gpu [%], pstate"]
    for i in range(r.size):
        lines += [
            f"{r.at(i):%Y/%m/%d %H:%M:%S}.{k:03d}, {k}, NVIDIA H200, {v[i] / MIB:.2f}{'' if bare else ' MiB'}, "
            f"{i % 7}{'' if bare else ' %'}, P{2 * (i % 2)}"
            for k, v in enumerate(r.owners.values())
        ]
    return "\n".join(lines) + "\n", None


def _dmon(r: Recording) -> tuple[str, None]:
    lines = []
    for i in range(r.size):
        if i % 10 == 0:
            lines += [
                "#Date       Time        gpu    pwr     sm     fb   bar1 ",
                "#YYYYMMDD   HH:MM:SS    Idx      W      %     MB     MB ",
            ]
        lines += [
            f" {r.at(i):%Y%m%d   %H:%M:%S} {k:>6} {70 + i % 9:>6} {i % 5:>6} {v[i] / MIB:.2f} {22:>6} "
            for k, v in enumerate(r.owners.values())
        ]
    return "\n".join(lines) + "\n", None


def _jstat(r: Recording) -> tuple[str, None]:
    lines = [
        "Timestamp        S0C    S1C    S0U    S1U      EC       EU        OC         OU       MC     MU     YGC     YGCT    FGC    FGCT     GCT   "
    ]
    lines += [
        f"{1754.6 + r.t_s[i]:>17.1f} 34048.0 34048.0  0.0   34048.0 272640.0 {1000 * (i % 90):.1f} 99999999.0 {r.one[i] / 1024:.1f}  18304.0 17866.3 {3 + i // 9:>6} {i * 0.01:.3f}   0      0.000    {i * 0.01:.3f}"
        for i in range(r.size)
    ]
    return "\n".join(lines) + "\n", None


def _status(r: Recording) -> tuple[str, None]:
    lines = []
    for i in range(r.size):
        lines += [f"{r.at(i).timestamp():.0f}", f"VmRSS:\t{_kib(r.one[i])} kB", "Threads:\t4"]
    return "\n".join(lines) + "\n", None


def _memory_stat(r: Recording) -> tuple[str, float]:
    lines = []
    for i in range(r.size):
        lines += [
            f"anon {r.one[i]:.0f}",
            f"file {2e9 + 4e7 * i:.0f}",
            f"active_file {1e9 + 2e7 * i:.0f}",
            "sock 0",
        ]
    return "\n".join(lines) + "\n", STEP_S


def _systemctl(r: Recording) -> tuple[str, None]:
    # This value includes the page cache, so its growth alone proves nothing.
    lines = []
    for i in range(r.size):
        lines += [
            f"{r.at(i).timestamp():.0f}",
            f"MemoryCurrent={r.one[i]:.0f}",
            "ActiveState=active",
        ]
    return "\n".join(lines) + "\n", None


def _metrics(r: Recording) -> tuple[str, float]:
    lines = []
    for i in range(r.size):
        lines += [
            "# HELP container_memory_rss Size of RSS in bytes.",
            "# TYPE container_memory_rss gauge",
        ]
        lines += [f'container_memory_rss{{pod="{n}"}} {v[i]:.6e}' for n, v in r.owners.items()]
        lines += [f'container_memory_cache{{pod="{n}"}} {3e9 + i * 3e7}' for n in r.owners]
        lines += [f'http_requests_total{{pod="{n}"}} {i * 100}' for n in r.owners]
    return "\n".join(lines) + "\n", STEP_S


def _dcgm(r: Recording) -> tuple[str, float]:
    lines = []
    for i in range(r.size):
        lines += [
            f'DCGM_FI_DEV_FB_USED{{gpu="{k}"}} {v[i] / MIB:.2f}'
            for k, v in enumerate(r.owners.values())
        ]
    return "\n".join(lines) + "\n", STEP_S


def _prometheus(r: Recording) -> tuple[str, None]:
    result = [
        {"metric": {"__name__": "process_resident_memory_bytes", "pod": n, "job": "x"},
         "values": [[r.at(i).timestamp(), f"{v[i]:.0f}"] for i in range(r.size)]}
        for n, v in r.owners.items()
    ]  # fmt: skip
    indent = 1 if r.rng.random() < 0.3 else None
    return json.dumps(
        {"status": "success", "data": {"resultType": "matrix", "result": result}}, indent=indent
    ), None


def _cloudwatch(r: Recording) -> tuple[str, None]:
    points = [
        {"Timestamp": r.at(i).isoformat(), "Average": r.one[i] / 1e6, "Unit": "Megabytes"}
        for i in r.rng.permutation(r.size)
    ]
    return json.dumps(
        {"Label": "mem", "Datapoints": points}, indent=2 if r.rng.random() < 0.5 else None
    ), None


def _metric_data(r: Recording) -> tuple[str, None]:
    results = [{"Id": f"m{k}", "Label": f"{n}_rss_bytes", "StatusCode": "Complete",
                "Timestamps": [r.at(i).isoformat() for i in range(r.size)][::-1],
                "Values": [float(x) for x in v][::-1]} for k, (n, v) in enumerate(r.owners.items())]  # fmt: skip
    return json.dumps({"MetricDataResults": results}), None


def _datadog(r: Recording) -> tuple[str, None]:
    series = [{"metric": "container.memory.rss", "scope": f"pod:{n}", "unit": [{"family": "bytes", "name": "byte"}, None],
               "pointlist": [[r.at(i).timestamp() * 1000, float(v[i])] for i in range(r.size)]} for n, v in r.owners.items()]  # fmt: skip
    return json.dumps({"status": "ok", "res_type": "time_series", "series": series}), None


def _graphite(r: Recording) -> tuple[str, None]:
    return json.dumps(
        [
            {
                "target": f"{n}_rss_bytes",
                "datapoints": [[float(v[i]), int(r.at(i).timestamp())] for i in range(r.size)],
            }
            for n, v in r.owners.items()
        ]
    ), None


def _influx(r: Recording) -> tuple[str, None]:
    values = [[r.at(i).isoformat(), float(r.one[i])] for i in range(r.size)]
    return json.dumps(
        {
            "results": [
                {"series": [{"name": "mem", "columns": ["time", "rss_bytes"], "values": values}]}
            ]
        }
    ), None


def _json_lines(r: Recording) -> tuple[str, None]:
    key = ("Name", "container", "svc")[int(r.rng.integers(3))]
    rows = [
        json.dumps({"ts": r.at(i).timestamp(), key: n, "mem": {"rss_bytes": float(v[i])}})
        for i in range(r.size)
        for n, v in r.owners.items()
    ]
    return "\n".join(rows) + "\n", None


def _grafana(r: Recording) -> tuple[str, None]:
    head = '"Time",' + ",".join(f'"{n}"' for n in r.owners)
    rows = [
        f'"{r.at(i):%Y-%m-%d %H:%M:%S}",'
        + ",".join(f'"{v[i] / MIB:.3f} MiB"' for v in r.owners.values())
        for i in range(r.size)
    ]
    return "\n".join([head, *rows]) + "\n", None


def _mprof(r: Recording) -> tuple[str, None]:
    lines = ["CMDLINE python x.py"]
    for i in range(r.size):
        for k, v in enumerate(r.owners.values()):
            lines.append(
                f"{'MEM' if k == 0 else f'CHLD {k - 1}'} {v[i] / MIB:.6f} {r.at(i).timestamp():.4f}"
            )
    if r.rng.random() < 0.5:
        lines.insert(0, "FUNC main.f 14.4 1698031577.0 14.4 1698031578.0")
    return "\n".join(lines) + "\n", None


def _ownerless(r: Recording) -> tuple[str, float]:
    return "\n".join(
        f"{_kib(v[i]) | 1}" for i in range(r.size) for v in r.owners.values()
    ) + "\n", STEP_S


def _same_times(r: Recording) -> tuple[str, None]:
    rows = [
        f"{r.at(i).timestamp():.0f},{v[i]:.0f}" for i in range(r.size) for v in r.owners.values()
    ]
    return "\n".join(["time,rss_bytes", *rows]) + "\n", None


def _overlapping(r: Recording) -> tuple[str, None]:
    rows = [
        f"{r.at(i).timestamp() + 7 * k:.0f},{v[i]:.0f}"
        for k, v in enumerate(r.owners.values())
        for i in range(r.size)
    ]
    return "\n".join(["time,rss_bytes", *rows]) + "\n", None


# The most owners of each tool; -1 stands for two indistinguishable owners, which must be refused.
_MAKERS: dict[str, tuple[int, Callable[[Recording], tuple[str, float | None]]]] = {
    "csv": (1, _csv), "semicolons": (1, _semicolons), "named unit": (1, _named_unit),
    "epochs": (1, _epochs), "long": (3, _long), "untimed owners": (3, _untimed_owners),
    "bare": (1, _bare), "ps aux": (3, _ps_aux), "top": (3, _top), "pidstat": (3, _pidstat),
    "smem": (3, _smem), "docker": (3, _docker), "kubectl": (3, _kubectl), "nvidia": (3, _nvidia),
    "dmon": (3, _dmon), "jstat": (1, _jstat), "status": (1, _status),
    "memory.stat": (1, _memory_stat), "systemctl": (1, _systemctl), "metrics": (3, _metrics),
    "dcgm": (3, _dcgm), "prometheus": (3, _prometheus), "cloudwatch": (1, _cloudwatch),
    "metric data": (3, _metric_data), "datadog": (3, _datadog), "graphite": (3, _graphite),
    "influx": (1, _influx), "json lines": (3, _json_lines), "grafana": (3, _grafana),
    "mprof": (3, _mprof), "ownerless": (-1, _ownerless), "same times": (-1, _same_times),
    "overlapping": (-1, _overlapping),
}  # fmt: skip
# Tools that write timestamps; in the others, a gap shifts all later times.
_TIMED = frozenset(_MAKERS) - {
    "epochs", "untimed owners", "smem", "docker", "memory.stat", "metrics", "dcgm", "ownerless"
}  # fmt: skip
