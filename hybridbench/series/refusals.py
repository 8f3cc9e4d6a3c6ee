"""Recognise common input without series; say in one sentence what it is and what to record."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hybridbench.series.source import Line

_LOOKED_AT, _BEGINNING = 12, 1000  # lines; characters of each that show whether it is a log
_PS = "`while sleep 10; do date +%s; ps -o rss= -p PID; done`"
_SMI = "`nvidia-smi --query-gpu=timestamp,index,memory.used --format=csv -l 10`"
_METRICS = "`while sleep 10; do date +%s; curl -s URL/metrics; done`"
AS_CSV = "write the time and one number of each line as CSV, with a heading such as time,rss_bytes"
_MACHINE = "is the memory of the whole machine and its page cache"
_KERNEL = "`while sleep 10; do date +%s; grep -E 'MemAvailable|SUnreclaim' /proc/meminfo; done`"
_BROKER = (
    "`while sleep 10; do date +%s; rabbitmq-diagnostics -q memory_breakdown --formatter json; done`"
)
OF_FILES = "is a list of files with their sizes, such as those of du, df, ls, wc and docker ps"
RECORD_PROCESS = f"record a process: {_PS}"
# For each advice, what it is for, and a pattern that one of the file's first lines matches; the
# first one counts.
_KINDS: Mapping[str, Mapping[str, str]] = {
    f"record {_SMI}": {
        "is what nvidia-smi draws or lists for people":
            r"NVIDIA-SMI |=+NVSMI LOG=+|\d+ +N/A .* \d+MiB$",
        "is what gpustat prints for people": r"\[\d+\] NVIDIA .*\|",
    },
    f"record go_memstats of /metrics: {_METRICS}": {
        "is Go's gctrace": r"gc \d+ @[\d.]+s ",
        "is a report of pprof, of one moment":
            r"#? ?runtime\.MemStats|Type: (inuse|alloc)_|Showing nodes accounting",
    },
    "record `jstat -gc -t PID 10s`": {
        "is the log of a Java collector": (
            r"(\S+: ){0,2}(\[.*\])?\[?(Full )?(gc|GC)[ (\]].*(Pause|->)|.*GC\(\d+\) "
        ),
        "is a histogram of classes, of one moment": r".*#instances +#bytes|.*\bCount +TotalSize",
        "is what jcmd and jmap print of one moment":
            r"\d+:$|Native Memory Tracking|.* heap +total \d+K, used|Heap Usage:|Attaching to pro",
    },
    "print JSON.stringify(process.memoryUsage()), one object a line": {
        "is the log of V8's collector": r"\[\d+:0x[\da-f]+\] +\d+ ms: ",
        "is an object as console.log prints it":
            r"\s*\{ ?[A-Za-z_]\w*: |\s*(rss|heapTotal|heapUsed): ['\d]",
    },
    RECORD_PROCESS: {
        f"the output of vmstat {_MACHINE}":
            r"procs -+|\s*r +b +swpd +free|\s*\d+ K (total|used) memory|Mach Virtual Memory Stat|"
            r"nr_free_pages \d|Per-node system memory|ITEM +SIZE +LIMIT",
        f"the output of free {_MACHINE}":
            r"(# +date)?\s+total +used +free +shared|"
            r"(Mem|Swap): +[\d.]+[KMGi]* +[\d.]+[KMGi]* +[\d.]+",
        "the output of top on macOS is not read": r"Processes: \d+ total",
        OF_FILES: r"[\d.]+[KMGT]?\t[./~]|[d-][r-][w-]\S+ +\d|Filesystem .*Use%|CONTAINER ID +IMAGE",
        "is a status of nginx, of Varnish or of the machine's sockets": r"Active connections: \d|"
            r"(MAIN|MGT|SMA)\.\S+ +\d+ +[\d.]+ +[A-Z]|sockets: used \d|TCP: +\d+ \(estab",
        "is a report of GuideLLM, whose benchmarks have a load each": r'.*"guidellm_version"',
        "is a report of pmap, numastat, of a profiler such as valgrind, or of one moment":
            r"desc: |time_unit: |cmd: valgrind|Address +Kbytes|\d+: +[^\d\s]\S*$|Proto |Filename:|"
            r"Line #|Process \d+: |==\d+== |___ Begin jemalloc|reading file |MOST CALLS |"
            r"(\[[\d:]+\] )?\[? ?Top \d+ |Per-node process memory|.*\"total_bytes_allocated\":|"
            r"\s*Command being timed|Total allocations|.*Total memory allocated|Partition of a set",
        "is a report of vmmap, footprint or dumpsys, of one moment":
            r"Physical footprint|.*\bFootprint: |\*\* MEMINFO|Applications Memory Usage",
    },
    "record `while sleep 10; do date +%s; grep -E 'VmRSS|VmSwap' /proc/PID/status; done`": {
        "is /proc/PID/statm, in pages without names": r"\d+ \d+ \d+ \d+ 0 \d+ 0$",
        "is /proc/PID/smaps, with an entry for each mapping":
            r"[\da-f]+-[\da-f]+ [r-][w-][x-][ps] .*(?<!\[rollup\])$",
    },
    f"record {_KERNEL}": {
        "is /proc/slabinfo or the output of slabtop, caches of the kernel":
            r"slabinfo - version|.* : tunables +\d|\s*Active / Total Objects|\s*OBJS ACTIVE ",
    },
    f"record {_BROKER}": {
        "is what rabbitmqctl prints for people": r"(Status of|Reporting memory breakdown on) node ",
    },
    "record `pidstat -r -h -p PID 10`": {
        "is the output of atop -P, without names": r"(PRM|PRC|MEM|CPU|CPL) \S+ 1\d{9} ",
        "is the recording of nmon, with other columns on each line": r"AAA,|ZZZZ,T\d",
    },
    'record `typeperf "\\Process(NAME)\\Working Set - Private" -si 10 -f CSV -o FILE`': {
        "is a list of PowerShell's Get-Counter": r"Timestamp +CounterSamples|Readings +: \\\\",
    },
    "record `dotnet-counters collect --format csv -p PID`": {
        "is the screen of dotnet-counters": r"Press p to pause|\[System\.Runtime\]$",
    },
    "write the time and torch.cuda.memory_allocated() as CSV": {
        "is torch.cuda.memory_summary()": r".*PyTorch CUDA memory summary",
    },
    "record with collectd's csv plugin": {
        "is what collectd's exec and unixsock plugins exchange": r"PUTVAL \S+ interval=",
    },
    'write CSV, or JSON (Telegraf: `data_format = "json"`)': {
        "is the line protocol of InfluxDB":
            r"[\w.-]+(,[\w.-]+=[^ ,]+)* ([\w.-]+=[^ ,]+,?)+ 1\d{9,18}$",
    },
    "write it with df.to_csv(FILE)": {"is a DataFrame that pandas shortened": r"\.\. +\.\.\."},
    "repeat it with `/fo csv`": {"is the table of tasklist": r"Image Name +PID "},
    "repeat it with `--csv`": {"is what rocm-smi prints for people": r"=+ ROCm|GPU\[\d\]\s*:"},
    "repeat it with `--json`": {"is what jfr prints for people": r"jdk\.\w+ \{"},
    "repeat it with `--format=json`": {"is what promtool prints for people": r".*\} =>$"},
    "request format=json or format=csv": {"is Graphite's raw format": r"[^,\s]+(,\d+){3}\|"},
    "print json.dumps(...), one object a line": {"is a Python dict": r"\s*\{'"},
    "print GC.stat.to_json, one object a line": {"is a Ruby hash": r"\{:?\"?\w+\"? ?=>"},
    AS_CSV: {
        "is an Erlang or Elixir term": r"\s*\[?\{\w+,|%\{\w|\s+(processes|atom)_used: \d",
        "is XML or HTML": r"\s*<(\?xml|!DOCTYPE|html)",
        "is a drawn box": r"\s*[+|╭┌╔├].*[+|╮┐╗┤]\s*$",
        "is YAML": r"---$|\w+:$|\s*- \w+: ",
    },
}  # fmt: skip
_WORDS, _WORDS_A_LINE = re.compile(r"[A-Za-z]{3,}"), 4
_LEVEL = re.compile(
    r"\b(INFO|DEBUG|WARN(ING)?|ERROR|TRACE|CRITICAL|NOTICE)\b|\]\[info\]|(Decode|Prefill) batch|"
    r"\[(TIME|MEMORY|info|warn|main)\]|\w+=\S+ \w+=\S+ \w+=\S|\d:\d\d\S* (\S+ )?\S*\[\d+\]:? "
)
_LABELLED = re.compile(
    r"[A-Za-z)]+( ?[:=] ?| is | was )[\d.]+.*[|,;].*[A-Za-z)]+( ?[:=] ?| is | was )[\d.]+"
)


def what_it_is(lines: Sequence[Line], *, is_json: bool) -> str:
    """Return half a sentence on what ``lines`` are and what to record instead; empty if unknown."""
    first = [line.text for line in lines[:_LOOKED_AT]]
    for advice, kinds in _KINDS.items():
        for what, pattern in kinds.items():
            if any(re.match(pattern, text) for text in first):
                return f"{what}; {advice}"
    if is_json and first[0].lstrip().startswith(("{", '["', "[{")):
        return ""
    # The search takes time with the square of a word's length.
    begins = [text[:_BEGINNING] for text in first]
    logs = [text for text in begins if _LEVEL.search(text) or _LABELLED.search(text)]
    if logs and 2 * len(logs) >= len(first):
        return f"is a log; {AS_CSV}, or record the server's metrics: {_METRICS}"
    return ""


def is_prose(lines: Sequence[Line]) -> bool:
    """Return whether lines are prose with a few numbers."""
    texts = [line.text for line in lines[:_LOOKED_AT]]
    return sum(len(_WORDS.findall(text)) for text in texts) > _WORDS_A_LINE * len(texts)


NO_SHAPE = (
    f"is not a table, not JSON and not a list of names and numbers; {AS_CSV}, or record {_PS}"
)
