"""Recognise common input without series; say in one sentence what it is and what to record."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hybridbench.series.source import Line

_LOOKED_AT = 12
_PS = "`while sleep 10; do date +%s; ps -o rss= -p PID; done`"
_SMI = "`nvidia-smi --query-gpu=timestamp,index,memory.used --format=csv -l 10`"
_METRICS = "`while sleep 10; do date +%s; curl -s URL/metrics; done`"
_MACHINE = "is the memory of the whole machine and its page cache; record a process: " + _PS
_LINES = "write the time and one number of each line as CSV, with a heading such as time,rss_bytes"
# The first pattern here that matches any of the file's first lines names its kind.
_KINDS = (
    (
        r"procs -+|\s*r +b +swpd +free|\s*\d+ K (total|used) memory",
        f"the output of vmstat {_MACHINE}",
    ),
    (
        r"\s+total +used +free +shared|(Mem|Swap): +[\d.]+[KMGi]* +[\d.]+[KMGi]* +[\d.]+",
        f"the output of free {_MACHINE}",
    ),
    (
        r"NVIDIA-SMI |=+NVSMI LOG=+|\d+ +N/A .* \d+MiB$",
        f"is what nvidia-smi draws or lists for people; record {_SMI}",
    ),
    (r"\[\d+\] NVIDIA .*\|", f"is what gpustat prints for people; record {_SMI}"),
    (r"Processes: \d+ total", f"the output of top on macOS is not read; record {_PS}"),
    (
        r".*PyTorch CUDA memory summary",
        "is torch.cuda.memory_summary(); write the time and torch.cuda.memory_allocated() as CSV",
    ),
    (
        r"gc \d+ @[\d.]+s |\s*(Alloc|HeapAlloc|HeapInuse) = \d+ \w+\s+\w+ = ",
        "is Go's gctrace, or memory as a Go program prints it; record go_memstats of /metrics: "
        + _METRICS,
    ),
    (
        r"\[\d+:0x[\da-f]+\] +\d+ ms: ",
        "is the log of V8's collector; print JSON.stringify(process.memoryUsage()), one object a "
        "line",
    ),
    (
        r"PUTVAL \S+ interval=",
        "is what collectd's exec and unixsock plugins exchange; record with its csv plugin",
    ),
    (
        r"(\[.*\])?\[?(gc|GC)[ (\]].*(Pause|->)|.*GC\(\d+\) ",
        "is the log of a Java collector; record `jstat -gc -t PID 10s`",
    ),
    (
        r"\d+ \d+ \d+ \d+ 0 \d+ 0$",
        "is /proc/PID/statm, in pages without names; record `while sleep 10; do date +%s; grep "
        "-E 'VmRSS|VmSwap' /proc/PID/status; done`",
    ),
    (r"\s*[+|╭┌╔├].*[+|╮┐╗┤]\s*$", f"is a drawn box; {_LINES}"),
    (
        r"\d+:$|Native Memory Tracking|.* heap +total \d+K, used",
        "is what jcmd prints of one moment; record `jstat -gc -t PID 10s`",
    ),
    (r"---$|\w+:$", f"is YAML; {_LINES}"),
    (
        r"\s*\{ ?[A-Za-z_]\w*: |\s*(rss|heapTotal|heapUsed): ['\d]",
        "is an object as console.log prints it; print JSON.stringify(process.memoryUsage()), "
        "one object a line",
    ),
    (
        r'.*"guidellm_version"',
        "is a report of GuideLLM, whose benchmarks have a load each; judge the memory of the "
        "server, recorded beside it: " + _PS,
    ),
    (r"\s*\{'", "is a Python dict; print json.dumps(...), one object a line"),
    (r"\s*<(\?xml|!DOCTYPE|html)", f"is XML or HTML; {_LINES}"),
    (
        r"desc: |time_unit: |cmd: valgrind|Address +Kbytes|\d+: +[^\d\s]\S*$|Proto |Filename:|"
        r"Line #|Process \d+: |==\d+== |___ Begin jemalloc|reading file |MOST CALLS |"
        r"(\[[\d:]+\] )?\[? ?Top \d+ |Per-node process memory|.*\"total_bytes_allocated\":|"
        r"\s*Command being timed|Total allocations|.*Total memory allocated",
        f"is a report of pmap, numastat, of a profiler such as valgrind, or of one moment; record "
        f"{_PS}",
    ),
    (
        r"Press p to pause|\[System\.Runtime\]$",
        "is the screen of dotnet-counters; record `dotnet-counters collect --format csv -p PID`",
    ),
    (r"\[?\{\w+,\d+\}", f"is an Erlang term; {_LINES}"),
    (r"\{:?\"?\w+\"? ?=>", "is a Ruby hash; print GC.stat.to_json, one object a line"),
    (
        r"#? ?runtime\.MemStats|Type: (inuse|alloc)_|Showing nodes accounting",
        f"is a report of pprof, of one moment; record go_memstats of /metrics: {_METRICS}",
    ),
    (
        r"Physical footprint|.*\bFootprint: |\*\* MEMINFO|Applications Memory Usage",
        f"is a report of vmmap, footprint or dumpsys, of one moment; record {_PS}",
    ),
    (
        r"Timestamp +CounterSamples|Readings +: \\\\",
        "is a list of PowerShell's Get-Counter; record `typeperf \"\\Process(NAME)\\Working Set - "
        'Private" -si 10 -f CSV -o FILE`',
    ),
    (r"\.\. +\.\.\.", "is a DataFrame that pandas shortened; write it with df.to_csv(FILE)"),
    (r"Image Name +PID ", "is the table of tasklist; repeat it with `/fo csv`"),
    (r"=+ ROCm|GPU\[\d\]\s*:", "is what rocm-smi prints for people; repeat it with `--csv`"),
    (
        r"(PRM|PRC|MEM|CPU|CPL) \S+ 1\d{9} ",
        "is the output of atop -P, without names; record `pidstat -r -h -p PID 10`",
    ),
    (
        r"[\w.-]+(,[\w.-]+=[^ ,]+)* ([\w.-]+=[^ ,]+,?)+ 1\d{9,18}$",
        'is the line protocol of InfluxDB; write CSV, or JSON (Telegraf: `data_format = "json"`)',
    ),
    (r".*\} =>$", "is what promtool prints for people; repeat it with `--format=json`"),
    (r"[^,\s]+(,\d+){3}\|", "is Graphite's raw format; request format=json or format=csv"),
)
_WORDS, _WORDS_A_LINE = re.compile(r"[A-Za-z]{3,}"), 4
_LEVEL = re.compile(
    r"\b(INFO|DEBUG|WARN(ING)?|ERROR|TRACE|CRITICAL|NOTICE)\b|\]\[info\]|(Decode|Prefill) batch|"
    r"\[(TIME|MEMORY|info|warn|main)\]|\w+=\S+ \w+=\S+ \w+=\S"
)
_LABELLED = re.compile(
    r"[A-Za-z)]+( ?[:=] ?| is | was )[\d.]+.*[|,;].*[A-Za-z)]+( ?[:=] ?| is | was )[\d.]+"
)


def what_it_is(lines: Sequence[Line], *, is_json: bool) -> str:
    """Return half a sentence on what ``lines`` are and what to record instead; empty if unknown."""
    first = [line.text for line in lines[:_LOOKED_AT]]
    for pattern, what in _KINDS:
        if any(re.match(pattern, text) for text in first):
            return what
    if is_json and first[0].lstrip().startswith(("{", '["', "[{")):
        return ""
    logs = [text for text in first if _LEVEL.search(text) or _LABELLED.search(text)]
    if logs and 2 * len(logs) >= len(first):
        return f"is a log; {_LINES}, or record the server's metrics: {_METRICS}"
    return ""


def is_prose(lines: Sequence[Line]) -> bool:
    """Return whether lines are prose with a few numbers."""
    texts = [line.text for line in lines[:_LOOKED_AT]]
    return sum(len(_WORDS.findall(text)) for text in texts) > _WORDS_A_LINE * len(texts)


NO_SHAPE = (
    f"is not a table, not JSON and not a list of names and numbers; {_LINES}, or record {_PS}"
)
