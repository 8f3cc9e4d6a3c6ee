"""Output of other tools, in forms that are not listed anywhere: recognised, or refused by name."""

# ruff: noqa: E501  (lines are as wide as the tools print them)

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from hybridbench.foundation.errors import ConfigError, HybridbenchError
from hybridbench.records.finding import VerdictKind
from hybridbench.series.files import series_of
from hybridbench.series.judge import FileVerdict, JudgeOptions, judge_file
from hybridbench.series.source import Source
from hybridbench.series.units import meaning_of

ZERO = datetime(2026, 11, 20, 10, tzinfo=UTC)
ROWS = range(120)


def at(row: int) -> datetime:
    return ZERO + timedelta(minutes=row)


def judged(tmp_path: Path, text: str, ask: JudgeOptions | None = None) -> FileVerdict:
    path = tmp_path / "series"
    path.write_text(text, encoding="utf-8")
    return judge_file(str(path), ask or JudgeOptions(steady_at="10m"))


def rates(verdict: FileVerdict) -> dict[str, str]:
    """Return the rates of all leaks, in MiB/h or the column's unit."""
    found = {}
    for row in verdict.rows:
        rate = row.result.rate_per_hour
        if row.verdict is VerdictKind.LEAK and rate is not None:
            found[row.name] = (
                f"{rate.value / 2**20:.1f}" if row.unit_known else f"{rate.value:.3g}?"
            )
    return found


TIMED: dict[str, tuple[Callable[[int], str], dict[str, str]]] = {
    "pidstat -h": (lambda i: f"# Time        UID       PID  minflt/s  majflt/s     VSZ     RSS   %MEM  Command\n{at(i):%I:%M:%S %p}     1000      4242      0.00      0.00 1820884 {1243692 + 1000 * i}   1.90  python3", {"RSS": "58.6"}),
    "date and ps in a line": (lambda i: f"{at(i):%a %b %d %H:%M:%S UTC %Y} {500000 + 1000 * i}", {"RSS": "58.6"}),
    "date in German": (lambda i: f"Do 20. Nov {at(i):%H:%M:%S} CET 2026\n{500004 + 1000 * i}", {"RSS": "58.6"}),
    "date in Chinese": (lambda i: f"2026年 11月 20日 星期五 {at(i):%H:%M:%S} CST\n{500004 + 1000 * i}", {"RSS": "58.6"}),
    "bytes like seconds": (lambda i: f"{at(i).timestamp():.0f} {2**30 + 4096 * 300 * i}", {"memory": "70.3"}),
    "nvidia-smi, one value": (lambda i: f"{at(i):%Y/%m/%d %H:%M:%S}.000, {1000 + i} MiB", {"memory": "60.0"}),
    "Prometheus in a loop": (lambda i: json.dumps({"status": "success", "data": {"resultType": "vector", "result": [{"metric": {"__name__": "rss_bytes", "pod": pod}, "value": [at(i).timestamp(), str(1e9 + i * 1e6 * (pod == "a"))]} for pod in "ab"]}}), {'rss_bytes{pod="a"}': "57.2"}),
    "heading behind #": (lambda i: ("# elapsed_s rss_bytes\n" if i == 0 else "") + f"{60.0 * i:.18e} {2**30 + 2**20 * i:.18e}", {"rss_bytes": "60.0"}),
    "pandas, two rows of names": (lambda i: ("metric,rss_mib,fds,rss_mib\npod,a,a,b\ntime,,,\n" if i == 0 else "") + f"{at(i).isoformat()},{500 + i}.5,40,500.1", {'rss_mib{pod="a"}': "60.0"}),
    "timedelta of pandas": (lambda i: ("elapsed,rss_mib\n" if i == 0 else "") + f"{i // 24} days {i % 24:02d}:00:00,{1000 + 60 * i}.5", {"rss_mib": "60.0"}),
    "timedelta of Python": (lambda i: ("elapsed,rss_mib\n" if i == 0 else "") + f'"{timedelta(hours=i)}",{1000 + 60 * i}.5', {"rss_mib": "60.0"}),
    "OpenTelemetry": (lambda i: json.dumps({"timeUnixNano": f"{at(i).timestamp():.0f}000000000", "rss_bytes": 2**30 + i * 2**20}), {"rss_bytes": "60.0"}),
    "INFO of Redis": (lambda i: f"{at(i):%a %b %d %H:%M:%S UTC %Y}\n# Memory\nused_memory:{2**30 + 2**20 * i}\nused_memory_human:{1024 + i}.00M\nmem_allocator:jemalloc-5.3.0\nmaxmemory_policy:noeviction\nmem_fragmentation_ratio:1.25", {"used_memory": "60.0", "used_memory_human (MiB)": "60.0"}),
    "ms since 1970, bytes": (lambda i: f"{at(i).timestamp() * 1000:.0f} {2**30 + 1 + 2**20 * i - 2**21 * (i % 2)}", {"number": "6.29e+07?"}),
    "logfmt": (lambda i: f'ts={at(i).isoformat()} level=info msg="memory use" rss={1000 + i}MiB requests_total={7 * i}', {"rss": "60.0"}),
    "a time and name=value": (lambda i: f"[{at(i):%Y-%m-%d %H:%M:%S}] rss_bytes={2**30 + 2**20 * i} threads=40", {"rss_bytes": "60.0"}),
    "Azure's heading": (lambda i: ("Timestamp,Working Set Bytes (Avg)\n" if i == 0 else "") + f"{at(i).isoformat()},{2**30 + 2**20 * i}", {"Working Set Bytes (Avg)": "60.0"}),
    "Excel with AM and PM": (lambda i: ("Time;RSS (MiB);reqs\n" if i == 0 else "") + f"{at(i):%m/%d/%Y %I:%M %p};{1000 + i};{7 * i}", {"RSS (MiB)": "60.0"}),
    "psutil": (lambda i: ("time,rss,vms,num_fds\n" if i == 0 else "") + f"{at(i).isoformat()},{2**30 + 2**20 * i},{2**35},40", {"rss": "60.0"}),
    "GCP, names above the times": (lambda i: ("metric.type,kubernetes.io/container/memory/used_bytes\nTimestamp (UTC),\n" if i == 0 else "") + f"{at(i):%a %b %d %Y %H:%M:%S} GMT+0000 (Coordinated Universal Time),{2**30 + 2**20 * i}.0", {"kubernetes.io/container/memory/used_bytes": "60.0"}),
    "a row for each reading": (lambda i: ("timestamp,metric,value,unit\n" if i == 0 else "") + f"{at(i).isoformat()},rss,{1000 + i}.5,MiB\n{at(i).isoformat()},requests_total,{i * 30},\n{at(i).isoformat()},bytes_sent,{i * 30},", {"rss (MiB)": "60.0"}),
    "psutil, a row for each reading": (lambda i: ("time,metric,value\n" if i == 0 else "") + "\n".join(f"{at(i).isoformat()},{name},{2**30 + 2**20 * i}" for name in ("rss", "vms")), {"rss": "60.0", "vms": "60.0"}),
    "melted, of two pods": (lambda i: ("time,pod,variable,value\n" if i == 0 else "") + "\n".join(f"{at(i).isoformat()},{pod},rss_bytes,{2**30 + 2**20 * i * (pod == 'a')}" for pod in "ab"), {'rss_bytes{pod="a"}': "60.0"}),
    "a time, a worker and its memory": (lambda i: "\n".join(f"[{at(i):%Y-%m-%d %H:%M:%S}] worker {n}: rss={123456 + 1000 * i * n} kB" for n in (0, 1)), {'rss{owner="worker 1"}': "58.6"}),
    "a time, a worker and a colon": (lambda i: "\n".join(f"{at(i):%H:%M:%S} worker {n}: rss: {123456 + 1000 * i * n} kB" for n in (0, 1)), {'worker 1: rss': "58.6"}),
    "varnishstat -j": (lambda i: json.dumps({"timestamp": at(i).isoformat(), "counters": {"MAIN.s_pipe": {"flag": "c", "format": "i", "value": 17 * i}, "MAIN.n_object": {"flag": "g", "format": "i", "value": 9 * i}}}), {"counters.MAIN.n_object.value": "540?"}),
    "a flag beside each value, of two hosts": (lambda i: "\n".join(json.dumps({"ts": at(i).isoformat(), "host": host, "hits": {"type": "counter", "value": 17 * i}, "objects": {"type": "gauge", "value": 9 * i}}) for host in "ab"), {'objects.value{host="a"}': "540?", 'objects.value{host="b"}': "540?"}),
    "a time in brackets": (lambda i: f"[{at(i):%H:%M:%S}] Memory usage: {1000 + i} MiB", {"Memory usage": "60.0"}),
    "a time and a colon": (lambda i: f"{at(i).isoformat()}: {1000 + i} MiB", {"memory": "60.0"}),
    "KB in cells": (lambda i: ("time,rss\n" if i == 0 else "") + f'{at(i).isoformat()},"{1000000 + 1000 * i:,} KB"', {"rss": "58.6"}),
    "Log Analytics of Azure": (lambda i: ('"TimeGenerated [UTC]",Computer,CounterName,CounterValue\n' if i == 0 else "") + f'"{at(i):%m/%d/%Y, %I:%M:%S.000 %p}",vm,"Available MBytes",{8000 - i}', {"Available MBytes": "60.0"}),
    "dotnet-counters": (lambda i: ("Timestamp,Provider,Counter Name,Counter Type,Mean/Increment\n" if i == 0 else "") + f"{at(i):%Y-%m-%d %I:%M:%S %p},System.Runtime,Working Set (MB),Metric,{1.048576 * (1000 + i):.6f}\n{at(i):%Y-%m-%d %I:%M:%S %p},System.Runtime,CPU Usage (%),Metric,{i % 9}", {"Working Set (MB)": "60.0"}),
    "PRTG": (lambda i: ("Date Time,Date Time(RAW),Available Memory\n" if i == 0 else "") + f'"{at(i):%d/%m/%Y %H:%M:%S} - {at(i + 1):%H:%M:%S}",{46346.4 + i / 1440:.8f},"{20000 - i:,} MByte"', {"Available Memory": "60.0"}),
    "Kibana": (lambda i: ("@timestamp per minute,Average of rss\n" if i == 0 else "") + f'"Nov 20, 2026 @ {at(i):%H:%M:%S}.000",{1000 + i}MiB', {"Average of rss": "60.0"}),
    "uptime and ps": (lambda i: f" {at(i):%H:%M:%S} up 10 days,  3:22,  1 user,  load average: 0.00, 0.01, 0.05\n  PID   RSS COMMAND\n 1234 {500000 + 1000 * i} python3 a.py", {"RSS": "58.6"}),
    "a date and bytes around a billion": (lambda i: f"{at(i):%Y-%m-%d %H:%M:%S}\n{900 * 2**20 + 2**20 * i}", {"memory": "60.0"}),
    "pmrep": (lambda i: ("   p.p.rss\n     Kbyte\n" if i == 0 else "") + f"{at(i):%H:%M:%S}  {1024 * (1000 + i)}", {"p.p.rss (Kbyte)": "60.0"}),
    "amd-smi monitor": (lambda i: ("TIMESTAMP  GPU  POWER  VRAM_USED  VRAM_TOTAL\n" if i == 0 else "") + f"{at(i).timestamp():.0f}  0  140 W  {2000 + i} MB  196592 MB", {"VRAM_USED": "60.0"}),
    "amd-smi, CSV": (lambda i: ("timestamp,gpu,total_vram,used_vram\n" if i == 0 else "") + f"{at(i).timestamp():.0f},0,196592,{2000 + i}", {"used_vram": "60.0"}),
    "amd-smi, JSON": (lambda i: json.dumps({"timestamp": at(i).timestamp(), "total_vram": {"value": 196592, "unit": "MB"}, "used_vram": {"value": 2000 + i, "unit": "MB"}}), {"used_vram": "60.0"}),
    "units below the names": (lambda i: ("Time;RSS;Heap\nmin;MiB;-\n" if i == 0 else "") + f"{i};{1000 + i};5", {"RSS (MiB)": "60.0"}),
    "units below the names, blanks": (lambda i: ("elapsed   rss\n    [h]  [KiB]\n" if i == 0 else "") + f"{i / 60:.4f} {1024 * (1000 + i)}", {"rss (KiB)": "60.0"}),
    "hosts above the names": (lambda i: (",web,web,db,db\nTime,rss_mib,fds,rss_mib,fds\n" if i == 0 else "") + f"{60 * i},{1000 + i},4,{2000},5", {"web rss_mib": "60.0"}),
    "rrdtool fetch": (lambda i: ("                memory\n\n" if i == 0 else "") + f"{at(i).timestamp():.0f}: {2**30 + 2**20 * i:.10e}", {"memory": "6.29e+07?"}),
    "top in German": (lambda i: f"top - {at(i):%H:%M:%S} up 10 days,  3:22,  1 user,  load average: 1,0, 1,0, 1,0\n%CPU(s):  1,0 us,  0,5 sy\nMiB Spch:  63258,0 gesamt,  56043,9 frei\n\n    PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     ZEIT+ BEFEHL\n   1234 root      20   0    9,5g {500000 + 1000 * i}   9000 S  99,0   5,0   1:02.03 python3 a.py", {"RES": "58.6"}),
    "nvidia-smi, two without heading": (lambda i: f"{at(i):%Y/%m/%d %H:%M:%S}.000, 0, {1000 + i} MiB\n{at(i):%Y/%m/%d %H:%M:%S}.004, 1, 500 MiB", {'memory{id="0"}': "60.0"}),
    "VictoriaMetrics, one below the other": (lambda i: f"rss,{'ab'[i // 60]},{10**9 + 1 + 10**6 * (i % 60) * (i < 60)},{at(i % 60).timestamp() * 1000:.0f}", {'rss{name="a"}': "6e+07?"}),
    "crictl": (lambda i: json.dumps({"stats": [{"attributes": {"metadata": {"name": name, "attempt": 0}}, "memory": {"timestamp": f"{at(i).timestamp():.0f}000000000", "workingSetBytes": {"value": str(2**30 + 2**20 * i * (name == "a"))}}} for name in "ab"]}, indent=1), {'memory.workingSetBytes.value{attributes.metadata.name="a"}': "60.0"}),
    "Datum and Uhrzeit": (lambda i: ("Datum;Uhrzeit;RSS (MiB)\n" if i == 0 else "") + f"{at(i):%d.%m.%Y;%H:%M:%S};{1000 + i},5", {"RSS (MiB)": "60.0"}),
    "thousands in India": (lambda i: ("Date,RSS (KB)\n" if i == 0 else "") + f'{at(i):%d/%m/%Y %H:%M},"{8 + (19 + i) // 100},{(19 + i) % 100:02},200"', {"RSS (KB)": "58.6"}),
    "thousands of KB": (lambda i: ("time;mem_kb\n" if i == 0 else "") + f"{at(i).isoformat()};{500 + i}.000", {"mem_kb": "58.6"}),
    "ps with its own time first": (lambda i: f"ELAPSED   RSS COMMAND\n{i // 60:02}:{i % 60:02}:00 {500000 + 1000 * i} java -Xmx4g -jar app.jar", {"RSS": "58.6"}),
    "mongostat": (lambda i: ("" if i % 10 else "insert query command dirty used vsize  res qrw net_in conn                time\n") + f"    *0    *0     1|0  0.0% 0.1% 9.50G {500 + i}M 0|0   111b    2 {at(i):%b %d %H:%M:%S}.123", {"res": "60.0"}),
    "dstat": (lambda i: ('"Dstat 0.7.4 CSV output"\n"Host:","web",,,"User:","root"\n\n"system","memory usage",\n"time","used_bytes","free"\n' if i == 0 else "") + f"{at(i):%d-%m %H:%M:%S},{2**30 + 2**20 * i}.0,2000000.0", {"used_bytes": "60.0"}),
    "PHP's error_log": (lambda i: f"[{at(i):%d-%b-%Y %H:%M:%S} UTC] Memory: {1000 + i} MiB", {"Memory": "60.0"}),
    "New Relic": (lambda i: ("Begin time seconds,End time seconds,Memory (MiB)\n" if i == 0 else "") + f"{at(i).timestamp() * 1000:.0f},{at(i + 1).timestamp() * 1000:.0f},{500 + i}.5", {"Memory (MiB)": "60.0"}),
    "psql, watched": (lambda i: f"      Memory\t{at(i):%a %d %b %Y %I:%M:%S %p UTC} (every 60s)\n\n  pid  | rss_bytes  \n-------+------------\n 1234  | {2**30 + 2**20 * i}\n 1235  | 500000000\n(2 rows)\n", {'rss_bytes{pid="1234"}': "60.0"}),
    "psql, watched, one value": (lambda i: f"{at(i):%a %b %d %H:%M:%S %Y} (every 60s)\n\n  sum_bytes  \n------------\n {2**30 + 2**20 * i}\n(1 row)\n", {"sum_bytes": "60.0"}),
    "rows of MySQL": (lambda i: f"*************************** 1. row ***************************\n       now: {at(i):%Y-%m-%d %H:%M:%S}\n used_bytes: {2**30 + 2**20 * i}", {"used_bytes": "60.0"}),
    "SQLite, line by line": (lambda i: f"       ts = {at(i):%Y-%m-%d %H:%M:%S}\nrss_bytes = {2**30 + 2**20 * i}\n", {"rss_bytes": "60.0"}),
    "a coloured prompt with a title": (lambda i: f"\x1b]0;root@host\x07\x1b(B\x1b[m{at(i):%H:%M:%S} {500004 + 1000 * i}\x1b[K", {"RSS": "58.6"}),
    "mysql, its tables drawn": (lambda i: f"{at(i):%Y-%m-%d %H:%M:%S}\n+---------------+--------------+\n| event_name    | current_alloc |\n+---------------+---------------+\n| memory/innodb | {1000 + i}.50 MiB   |\n| memory/sql    | 12.00 MiB     |\n+---------------+---------------+", {'current_alloc{event_name="memory/innodb"}': "60.0"}),
    "tasklist, one process": (lambda i: f"{at(i):%Y-%m-%d %H:%M:%S}\npython.exe                    1234 Console                    1  {1024 * (1000 + i):,} K", {"memory": "60.0"}),
    "promtool tsdb dump": (lambda i: f'{{__name__="rss_bytes", pod="a"}} {2**30 + 2**20 * i} {at(i).timestamp() * 1000:.0f}\n{{__name__="rss_bytes", pod="b"}} {2**30} {at(i).timestamp() * 1000:.0f}', {'rss_bytes{pod="a"}': "60.0"}),
    "a time between rules": (lambda i: f"=== {at(i).timestamp():.0f} ===\nVmRSS:  {500000 + 1000 * i} kB\nThreads: 9", {"VmRSS (KiB)": "58.6"}),
    "a time in brackets above pairs": (lambda i: f"[{at(i):%H:%M:%S}]\nVmRSS:  {500000 + 1000 * i} kB\nThreads: 9", {"VmRSS (KiB)": "58.6"}),
    "a time as a heading": (lambda i: f"## {at(i):%a %b %d %H:%M:%S UTC %Y}:\nVmRSS:  {500000 + 1000 * i} kB\nThreads: 9", {"VmRSS (KiB)": "58.6"}),
    "a time as a comment": (lambda i: f"# time: {at(i).isoformat()}\nVmRSS:  {500000 + 1000 * i} kB\nThreads: 9", {"VmRSS (KiB)": "58.6"}),
    "memcached": (lambda i: f"STAT pid 42\nSTAT time {at(i).timestamp():.0f}\nSTAT version 1.6.21\nSTAT bytes {2**30 + 2**20 * i}\nSTAT total_items {5000 + i * 50}\nEND", {"bytes": "60.0"}),
    "status of php-fpm": (lambda i: f"{at(i).timestamp():.0f}\npool:                 www\nprocess manager:      dynamic\nstart since:          {60 * i}\naccepted conn:        {i * 20}\nidle processes:       3\nactive processes:     {4 + i}\nslow requests:        0", {"active processes": "60?"}),
    "pandas, printed": (lambda i: ("                  time   rss_mib\n" if i == 0 else "") + f"{i:<3} {at(i):%Y-%m-%d %H:%M:%S} {500 + i:>9}.0", {"rss_mib": "60.0"}),
    "pandas, to_markdown": (lambda i: ("|    | time | rss_mib |\n|---:|:---|---:|\n" if i == 0 else "") + f"| {i:>2} | {at(i).isoformat()} | {500 + i} |", {"rss_mib": "60.0"}),
    "R, with row names": (lambda i: ('"time","rss_mib"\n' if i == 0 else "") + f'"{i + 1}","{at(i).isoformat()}",{500 + i}.5', {"rss_mib": "60.0"}),
    "a comma behind each row": (lambda i: ("time,rss_mib\n" if i == 0 else "") + f"{at(i).isoformat()},{500 + i}.5,", {"rss_mib": "60.0"}),
    "CloudWatch's console": (lambda i: ("Id,m1,m2\nStatusCode,Complete,Complete\nFull label,web mem,db mem\nLabel,mem,mem\nUnit,Megabytes,Megabytes\n" if i == 0 else "") + f"{at(i):%Y/%m/%d %H:%M:%S},9000,{1.048576 * (1000 + i):.4f}", {'mem (MB){Full label="db mem"}': "60.0"}),
    "Google Cloud, page cache": (lambda i: ("memory_type,non-evictable,evictable\nmetric.type,used_bytes,used_bytes\nTimestamp (UTC),,\n" if i == 0 else "") + f"{at(i).isoformat()},{2**30},{2**30 + 2**20 * i}", {}),
    "pidstat below a title": (lambda i: ("test with interval of 60\n" + f"{at(i):%H:%M:%S}      UID       PID  minflt/s  majflt/s     VSZ     RSS   %MEM  Command\n" if i == 0 else "") + f"{at(i):%H:%M:%S}     1000      4242      0.00      0.00 1820884 {1243692 + 1000 * i}   1.90  python3", {"RSS": "58.6"}),
    "docker stats as CSV, split at blanks": (lambda i: ("Name,CPU_percentage,Mem_usage,/,Mem_Limit,Net_I,/,Net_O,PIDS,Time_stamp\n" if i == 0 else "") + "\n".join(f"{n},0.5%,{100 + i * (n == 'a')}.5MiB,/,7.668GiB,{3 + i}MB,/,{8 + i}MB,22,{at(i).timestamp():.2f}" for n in "ab"), {'Mem_usage{Name="a"}': "60.0"}),
    "typeperf, cache beside the process": (lambda i: (r'"(PDH-CSV 4.0)","\\h\Memory\Available MBytes","\\h\Memory\Cache Bytes","\\h\Process(a)\Private Bytes"' + "\n" if i == 0 else "") + f'"{at(i):%m/%d/%Y %H:%M:%S}.123","9000","{2**28 + 2**19 * i}","{2**30 + 2**20 * i}"', {r"\\h\Process(a)\Private Bytes": "60.0"}),
    "typeperf": (lambda i: ('"(PDH-CSV 4.0)","\\\\h\\Process(a)\\Private Bytes","\\\\h\\Process(a)\\Handle Count"\n' if i == 0 else "") + f'"{at(i):%m/%d/%Y %H:%M:%S}.123","{2**30 + 2**20 * i}.000000","{300 + i}.000000"', {r"\\h\Process(a)\Private Bytes": "60.0", r"\\h\Process(a)\Handle Count": "60?"}),
    "k6": (lambda i: ("metric_name,timestamp,metric_value\n" if i == 0 else "") + f"rss_mib,{at(i).timestamp():.0f},{500 + i}\ndata_received,{at(i).timestamp():.0f},{9 * i}", {"rss_mib": "60.0"}),
    "code in Markdown": (lambda i: ("```csv\ntime,rss_mib\n" if i == 0 else "") + f"{at(i).isoformat()},{500 + i}.5" + "\n```" * (i == 119), {"rss_mib": "60.0"}),
    "dates with fractions": (lambda i: ("time;rss_mib\n" if i == 0 else "") + f"{at(i):%d/%m/%Y %H:%M:%S}.123;{500 + i}", {"rss_mib": "60.0"}),
    "status of Apache": (lambda i: f"localhost\nServerVersion: Apache/2.4.58\nCurrentTime: {at(i):%A, %d-%b-%Y %H:%M:%S} UTC\nTotal Accesses: {9000 + 311 * i}\nTotal kBytes: {99000 + 3000 * i}\nCPULoad: .0021\nUptime: {86400 + 60 * i}\nBusyWorkers: {3 + i}\nScoreboard: ____W___R", {"BusyWorkers": "60?"}),
    "Munin": (lambda i: f"{at(i):%Y-%m-%d %H:%M:%S}\n# munin node at web\napps.value {2**30 + 2**20 * i}\ncached.value {2**31 + 2**20 * i}\nslab.value 9000000\n.", {"apps": "6.29e+07?"}),
    "NMT of a JVM": (lambda i: f"{at(i):%Y-%m-%d %H:%M:%S} Total: reserved=5684MB, committed={1000 + i}MB", {"committed": "57.2"}),
    "serverStatus of MongoDB": (lambda i: json.dumps({"uptimeMillis": 60000 * i, "localTime": at(i).isoformat(), "mem": {"bits": 64, "resident": 1000 + i, "virtual": 2900}, "connections": {"current": 40 + i}, "asserts": {"user": 9 * i}, "ttl": {"deletedDocuments": 9 * i}}), {"mem.resident": "60.0", "connections.current": "60?"}),
    "nodetool info": (lambda i: f"ID                     : abc\nGossip active          : true\nUptime (seconds)       : {60 * i}\nHeap Memory (MB)       : {500 + i}.00 / 4096.00\nKey Cache              : entries 9, size 1 MiB", {"Heap Memory (MB)": "57.2"}),
    "mntr of ZooKeeper": (lambda i: f"{at(i):%Y-%m-%d %H:%M:%S}\nzk_version\t3.8.0-abc, built on 2022\nzk_packets_received\t{90 * i}\nzk_server_state\tleader\nzk_num_alive_connections\t{20 + i}\nzk_znode_count\t900", {"zk_num_alive_connections": "60?"}),
    "counters of SQL Server": (lambda i: ("time,counter_name,cntr_value\n" if i == 0 else "") + f"{at(i):%Y-%m-%d %H:%M:%S},Page reads/sec,{900 * i}\n{at(i):%Y-%m-%d %H:%M:%S},User Connections,{40 + i}", {"User Connections": "60?"}),
    "gpustat": (lambda i: json.dumps({"query_time": at(i).isoformat(), "gpus": [{"index": g, "uuid": f"GPU-{g}", "memory.used": 20000 + i * (g == 0), "memory.total": 81559, "utilization.gpu": i % 99} for g in (0, 1)]}), {'memory.used{index="0"}': "60.0"}),
    "pg_stat_activity": (lambda i: ("now,state,count\n" if i == 0 else "") + f"{at(i):%Y-%m-%d %H:%M:%S},active,{3 + i % 2}\n{at(i):%Y-%m-%d %H:%M:%S},idle in transaction,{2 + i}", {'count{state="idle in transaction"}': "60?"}),
    "nodes of Elasticsearch": (lambda i: json.dumps({"timestamp": int(at(i).timestamp() * 1000), "docs": {"count": 9000 + 90 * i, "deleted": i % 30}, "search": {"query_total": 50 * i, "open_contexts": 3 + i}, "indexing": {"index_total": 70 * i}, "get": {"total": 5 * i}, "rx_count": 9 * i, "jvm": {"heap_used_in_bytes": 2**30}}), {"search.open_contexts": "60?"}),
    "connections of nginx": (lambda i: json.dumps({"nowMsec": int(at(i).timestamp() * 1000), "connections": {"active": 100 + i % 13, "accepted": 9 * i, "requests": 20 * i}}), {}),
    "Go's runtime/metrics": (lambda i: json.dumps({"time": at(i).isoformat(), "/memory/heap/objects:bytes": 2**30 + 2**20 * i, "/gc/heap/allocs:bytes": 2**31 * i, "/gc/heap/frees:bytes": 2**31 * i, "/gc/cycles/total:gc-cycles": i}), {"/memory/heap/objects:bytes": "60.0"}),
    "a name after the time": (lambda i: f"{at(i).isoformat()} VmRSS: {500000 + 1000 * i} kB", {"VmRSS": "58.6"}),
    "names after the time": (lambda i: f"{at(i):%H:%M:%S} RSS: {500000 + 1000 * i}\n{at(i):%H:%M:%S} Peak: 900000", {"RSS": "58.6"}),
    "a rise of what is left": (lambda i: f"{at(i).isoformat()} MemAvailable: {500000 + 1000 * i} kB", {}),
    "a fall of what is left": (lambda i: f"{at(i).isoformat()} Mem available: {9000 - i} MB", {"Mem available": "57.2"}),
    "a day and a time of day": (lambda i: ("Date       Time     PID RSS COMMAND\n" if i == 0 else "") + f"{at(i):%Y-%m-%d %H:%M:%S} 42 {500000 + 1000 * i} python3 a.py --x", {"RSS": "58.6"}),
    "a day and a time of day in French": (lambda i: ("Date Heure RSS\n" if i == 0 else "") + f"{at(i):%d/%m/%Y %H:%M:%S} {1000 + i},5 Mo", {"RSS": "57.2"}),
    "durations": (lambda i: ("Uptime,rss_mib\n" if i == 0 else "") + f"{i // 60}h {i % 60}m,{1000 + i}", {"rss_mib": "60.0"}),
    "durations in Markdown": (lambda i: ("| Elapsed | RSS |\n|---|---|\n" if i == 0 else "") + f"| {i} min | {1000 + i} MiB |", {"RSS": "60.0"}),
    "a number of rows in Markdown": (lambda i: ("| # | time (UTC) | rss_mib | state |\n|---|---|---|---|\n" if i == 0 else "") + f"| {i + 1} | {at(i):%Y-%m-%d %H:%M} | {1000 + i}.0 | {'high' if i % 7 else ''} |", {"rss_mib": "60.0"}),
    "tabs that align by hand": (lambda i: ("time\t\trss_mib\tthreads\n" if i == 0 else "") + f"{at(i):%H:%M:%S}{chr(9) * (1 + i % 2)}{500 + i}\t\t24", {"rss_mib": "60.0"}),
    "script": (lambda i: ("Script started on 2026-11-20 10:00:00+00:00\n" if i == 0 else "") + f"{at(i).timestamp():.0f} {500000 + 1000 * i}" + ("\n^C\nScript done on 2026-11-20 12:00:00+00:00" if i == 119 else ""), {"RSS": "58.6"}),
    "MemStats of Go": (lambda i: f"{at(i).isoformat()} Alloc = {500 + i} MiB\tTotalAlloc = {900 + 40 * i} MiB\tSys = 900 MiB\tNumGC = {i}", {"Alloc": "60.0"}),
    "a number for each GPU": (lambda i: json.dumps({"ts": at(i).isoformat(), "rss_mib": 900, "gpu_mem_mib": [500 + i, 700]}), {'gpu_mem_mib{index="0"}': "60.0"}),
    "structured log": (lambda i: json.dumps({"time": at(i).isoformat(), "level": "INFO", "rss_bytes": 1e9 + i * 1e6}), {"rss_bytes": "57.2"}),
}  # fmt: skip
UNTIMED: dict[str, tuple[Callable[[int], str], dict[str, str]]] = {
    "jstat, eden in turn": (lambda i: ("EU OU YGC FGC GCT\n" if i == 0 else "") + f"{i * 37 % 300 * 1024}.0 {200000 + 1024 * i}.0 {3 * i} {i // 24} 1.3", {"OU": "60.0"}),
    "jstat -gcutil": (lambda i: ("S0 S1 E O M YGC FGC GCT\n" if i == 0 else "") + f"0.00 {i * 7 % 100}.00 {i * 37 % 100}.50 {20 + i / 10:.2f} 97.46 {3 * i} {i // 24} 1.3", {"O": "6?"}),
    "watch and ps": (lambda i: f"Every 60.0s: ps -o rss= -p 42      h: Thu Nov 19 21:30:00 2026\n\n{500004 + 1000 * i}", {"RSS": "58.6"}),
    "docker as JSON": (lambda i: "\n".join(json.dumps({"MemUsage": f"{100 + i * (n == 'a')}MiB / 7.6GiB", "Name": n, "PIDs": "8"}) for n in "ab"), {'MemUsage{Name="a"}': "60.0"}),
    "docker, name and memory": (lambda i: f"web,{100 + i}MiB / 7.6GiB\ndb,200MiB / 7.6GiB", {'memory{name="web"}': "60.0"}),
    "docker, timed": (lambda i: f"$ time docker stats --no-stream\nCONTAINER ID        NAME       CPU %     MEM USAGE / LIMIT     MEM %\nd79d70c61f08        zen_tu     27.82%    {1000 + i}MiB / 3.855GiB   95.69%\n\nreal\t0m30.798s\nuser\t0m0.045s", {"MEM USAGE / LIMIT": "60.0"}),
    "memory.current and memory.stat": (lambda i: f"memory.current={9 * 10**9 + 2 * 10**6 * i}\nanon {5 * 10**9 + 10**6 * i}\nfile {399261696 + 10**6 * i}\nactive_file 4444160", {"anon": "57.2"}),
    "docker redraws": (lambda i: f"\x1b[2J\x1b[HCONTAINER ID   NAME   CPU %   MEM USAGE / LIMIT   MEM %\n2019aa4e114e   web   0.70%   {140 + i}.0MiB / 7.667GiB   13.0%", {"MEM USAGE / LIMIT": "60.0"}),
    "docker without heading": (lambda i: f"3f4e5d6c7b8a   engine   99.12%    {100 + i}MiB / 8GiB   1.2%   1.2MB / 3.4MB   0B / 0B   12\n9a8b7c6d5e4f   redis    0.10%     7MiB / 8GiB  0.1%     0B / 0B   0B / 0B   5", {'MEM USAGE / LIMIT{NAME="engine"}': "60.0"}),
    "rabbitmqctl": (lambda i: f"Timeout: 60.0 seconds ...\nListing queues for vhost / ...\nname\tmemory\nq1\t{10**7 + 10**5 * i}\nq2\t55000", {'memory{name="q1"}': "6e+06?"}),
    "kubectl without heading": (lambda i: f"web-abc 5m {160 + i}Mi\ndb-xyz 3m 12Mi", {'memory{name="web-abc"}': "60.0"}),
    "pmon": (lambda i: f"# gpu         pid   type     fb   ccpm    command \n# Idx           #    C/G     MB     MB    name \n    0      12345     C   {1000 + i}      0    python3        \n    1      12346     C    800      0    python3", {'memory.fb [MiB]{index="0", pid="12345"}': "60.0"}),
    "dcgmi dmon": (lambda i: ("" if i % 10 else "#Entity   GPUTL        FBUSD                \nID                                           \n") + f"GPU 0     5            {1000 + i}                  \nGPU 1     0            450", {'FBUSD{Entity="GPU 0"}': "60.0"}),
    "PowerShell": (lambda i: f"\nHandles  NPM(K)    WS(K)     CPU(s)     Id  SI ProcessName\n-------  ------    -----     ------     --  -- -----------\n    512      45     {120000 + i * 1000}      12.34   4242   1 python", {"WS(K)": "58.6"}),
    "BusyBox's top": (lambda i: f"Mem: 1000000K used, 2000000K free\nCPU:   0% usr   0% sys\nLoad average: 0.00 0.01 0.05 1/100 999\n  PID  PPID USER     STAT   VSZ %VSZ CPU %CPU COMMAND\n 1234     1 root     S    {1000 + i}m  18%   0   0% python3 a.py", {"VSZ": "60.0"}),
    "top on macOS": (lambda i: f"PID    COMMAND      MEM\n4242   python3.11   {1000 + i}M+\n4243   nginx        {50 - i // 60}M-", {'MEM{PID="4242"}': "60.0"}),
    "top on macOS, one process": (lambda i: f"4242   python3.11   {1000 + i}M+", {"memory": "60.0"}),
    "tasklist as CSV": (lambda i: f'"python.exe","1234","Console","1","{1000000 + 1000 * i:,} K"\n"nginx.exe","77","Console","1","900,000 K"', {'memory{name="python.exe"}': "58.6"}),
    "nvidia-smi, its heading each time": (lambda i: f"memory.used [MiB]\n{1000 + i} MiB", {"memory.used [MiB]": "60.0"}),
    "two commands": (lambda i: f"  RSS COMMAND\n{500000 + 1000 * i} python3 a.py --x 1\n300000 python3 b.py", {'RSS{COMMAND="python3 a.py --x 1"}': "58.6"}),
    "files of two processes": (lambda i: f"/proc/7/status:VmRSS:\t  {500000 + 1000 * i} kB\n/proc/8/status:VmRSS:\t  5000 kB", {'VmRSS (KiB){file="/proc/7/status"}': "58.6"}),
    "psql": (lambda i: f"  name | total_bytes \n-------+-------\n Top   | {2**30 + 2**20 * i}\n Cache | 524288000\n(2 rows)\n", {'total_bytes{name="Top"}': "60.0"}),
    "a title above each heading": (lambda i: f"--- data --- --- load ---\nkeys mem clients\n{4900 - i % 3} {500 + i}.00M 8", {"mem": "60.0"}),
    "Get-Process as a list": (lambda i: f"\nId           : 4242\nProcessName  : app\nWorkingSet64 : {2**30 + 2**20 * i}\n", {"WorkingSet64": "60.0"}),
    "podman as JSON": (lambda i: json.dumps([{"name": n, "mem_usage": f"{100 + i * (n == 'a')}MiB / 7.6GiB", "net_io": f"{9 + i}kB / 2kB"} for n in "ab"]), {'mem_usage{name="a"}': "60.0"}),
    "docker and kubectl, nothing read": (lambda i: f"NAME   MEM USAGE / LIMIT\nweb    {100 + i}MiB / 8GiB\nold    -- / --\nnew    <unknown>", {'MEM USAGE / LIMIT{NAME="web"}': "60.0"}),
    "kubectl, ages": (lambda i: f"NAME AGE MEM\na {i}m {100 + i}Mi\nb 4d{i % 24}h 50Mi", {'MEM{NAME="a"}': "60.0"}),
    "sstat": (lambda i: f"       JobID     MaxRSS  AvePages \n------------ ---------- --------- \n1234.batch     {500000 + 1024 * i}K         0 \n1234.0           4000K         0 ", {'MaxRSS{JobID="1234.batch"}': "60.0"}),
    "sqlcmd": (lambda i: f"type       pages_kb\n---------- --------\nBUFFERPOOL {500000 + 1024 * i}\nSQLCP          5000\n\n(2 rows affected)", {'pages_kb{type="BUFFERPOOL"}': "58.6"}),
    "ps with the start": (lambda i: f"Fri Nov 20 09:00:00 2026 {500000 + 1000 * i}", {"RSS": "58.6"}),
    "remarks behind numbers": (lambda i: f"name  used              max\nold   {2**30 + 2**20 * i} ({1024 + i}MB)  2000 (x (y))\neden  1048576 (1MB)  {3000 + i} (x (y))", {'used{name="old"}': "6.29e+07?"}),
    "name=value on each line": (lambda i: f"rss={1000 + i}MiB, fds=40", {"rss": "60.0"}),
    "numbers that are not whole pages": (lambda i: f"{1234567 + 5001 * i - 6000 * (i % 2)}", {"number": "3e+05?"}),
    "wc -c < FILE": (lambda i: f"{1234567 + 5001 * i}", {}),
    "numbers of no known unit": (lambda i: f"{1001 + i}", {}),
    "MiB in steps of 4": (lambda i: f"{600 + 4 * i}", {}),
    "MiB in segments of 20": (lambda i: f"{20000 + 20 * i}", {}),
    "KiB of a small process": (lambda i: f"{8000 + 2400 * i + i % 3 * 4}", {"RSS": "140.6"}),
}  # fmt: skip


RSS = [2**30 + 2**20 * row for row in ROWS]
MOMENTS = [at(row).timestamp() for row in ROWS]
DOCUMENTS: dict[str, object] = {
    "columns in an object": {"data": {"time": MOMENTS, "rss_bytes": RSS, "fds": [40] * 120}},
    "columns beside a name": [
        {"host": "a", "time": MOMENTS, "rss_bytes": RSS, "fds": [40] * 120, "states": ["ok"]}
    ],
    "lists side by side": {"time": MOMENTS, "rss_bytes": RSS, "open_fds": [40] * 120},
    "pandas, by columns": {
        "time": dict(zip(map(str, ROWS), MOMENTS, strict=True)),
        "rss_bytes": dict(zip(map(str, ROWS), RSS, strict=True)),
    },
    "pandas, times as the index": {
        "rss_bytes": {f"{t * 1000:.0f}": rss for t, rss in zip(MOMENTS, RSS, strict=True)}
    },
    "a list of names, then of cells": [
        ["time", "rss_bytes"],
        *map(list, zip(MOMENTS, RSS, strict=True)),
    ],
    "objects by time": {at(row).isoformat(): {"rss_bytes": RSS[row]} for row in ROWS},
    "pandas, split": {
        "columns": ["time", "rss_bytes"],
        "index": list(ROWS),
        "data": [list(row) for row in zip(MOMENTS, RSS, strict=True)],
    },
}


@pytest.mark.parametrize("shape", DOCUMENTS)
def test_columns_of_a_document_keep_their_names(tmp_path: Path, shape: str) -> None:
    assert rates(judged(tmp_path, json.dumps(DOCUMENTS[shape]))) == {"rss_bytes": "60.0"}


def test_points_are_named_by_the_key_of_their_list(tmp_path: Path) -> None:
    points = {
        key: [[t, rss * (key == "heapUsed")] for t, rss in zip(MOMENTS, RSS, strict=True)]
        for key in ("heapUsed", "heapTotal")
    }

    # The names beside it say that it is in bytes.
    assert rates(judged(tmp_path, json.dumps(points))) == {"heapUsed": "60.0"}


@pytest.mark.parametrize("name", ["_step", "global_step", "#", "i", "seq", "batch", ""])
def test_the_number_of_a_row_is_no_level(tmp_path: Path, name: str) -> None:
    rows = [f"{row},{at(row).isoformat()},{2**30 + row % 3}" for row in ROWS]

    verdict = judged(tmp_path, "\n".join([f"{name},time,rss_bytes", *rows]))

    assert {row.name for row in verdict.rows} == {"rss_bytes"}
    assert verdict.kind == VerdictKind.CLEAN


SO_FAR = ("errors", "bytes_sent", "io_read_bytes", "hits", "misses", "tokens_generated",
          "ctx_switches_voluntary", "user_time", "gc_collections", "packets_recv", "requests_failed",
          "req_handled", "gc_runs", "queries_executed")  # fmt: skip


def test_what_adds_up_is_no_level_unless_it_falls(tmp_path: Path) -> None:
    rising = [f"{at(row).isoformat()},{2**30}" + f",{37 * row // 5}" * len(SO_FAR) for row in ROWS]
    heading = ",".join(["time,rss_bytes", *SO_FAR])

    verdict = judged(tmp_path, "\n".join([heading, *rising]))
    assert {row.name for row in verdict.rows} == {"rss_bytes"}

    # Errors per minute are a level.
    falling = [f"{at(row).isoformat()},{2**30},{20 + row + row % 2 * 5}" for row in ROWS]
    verdict = judged(tmp_path, "\n".join(["time,rss_bytes,errors", *falling]))
    assert {row.name for row in verdict.rows} == {"rss_bytes", "errors"}


def test_a_column_with_the_name_of_our_metric_hides_no_other(tmp_path: Path) -> None:
    rows = [f"{at(row).isoformat()},{2**30 + 2**20 * row},40" for row in ROWS]

    verdict = judged(tmp_path, "\n".join(["time,rss_bytes,open_fds", *rows]))

    assert rates(verdict) == {"rss_bytes": "60.0"}


@pytest.mark.parametrize("tool", TIMED)
def test_a_form_with_times_is_read(tmp_path: Path, tool: str) -> None:
    line, leaks = TIMED[tool]

    assert rates(judged(tmp_path, "\n".join(map(line, ROWS)))) == leaks


@pytest.mark.parametrize("tool", UNTIMED)
def test_a_form_without_times_is_read(tmp_path: Path, tool: str) -> None:
    line, leaks = UNTIMED[tool]
    ask = JudgeOptions(steady_at="10m", interval_s=60.0)

    assert rates(judged(tmp_path, "\n".join(map(line, ROWS)), ask)) == leaks


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Mon Nov 20 10:00:00 UTC 2026\n r  b   swpd   free\n 1  0 0 5\n", "vmstat.*ps -o rss="),
        ("==============NVSMI LOG==============\n", "query-gpu"),
        ("[42:0x5d9b40]    60 ms: Scavenge 50.1 (60.5) -> 48.2 (60.5) MB, 1.1 / 0.0 ms\n", "V8.*JSON.stringify"),
        ('PUTVAL "h/processes-py/ps_rss" interval=60.000 1795169460.123:1073741824\n' * 3, "collectd.*csv plugin"),
        ("[10:00:00] Top 10 stacks with outstanding allocations:\n\t1024 bytes in 10 allocations from stack\n", "profiler"),
        ("gc 1 @0.012s 2%: 0.026+0.39 ms clock\n", "gctrace.*/metrics"),
        ("/proc/meminfo:\n\n1.122: [GC (Allocation Failure)  69952K->14090K(253440K), 0.0107721 secs]\n3.4: [Full GC (Ergonomics)  76607K->5K(253440K), 0.01 secs]\n", "Java collector.*jstat"),
        ("[0.5s][info][gc] GC(12) Pause Young 24M->4M(256M) 3.7ms\n", "Java collector.*jstat"),
        ("{ rss: 1, heapTotal: 2 }\n", "JSON.stringify"),
        ("2024-11-05T11:32:52Z start  {\n  rss: '166.71 MB',\n  heapTotal: '43 MB'\n}\n", "JSON.stringify"),
        ("|    0   N/A  N/A   342697      C   VLLM::EngineCore       60993MiB |\n" * 3, "query-gpu"),
        ("{'rss': 1}\n", "json.dumps"),
        ("34349 4757 1200 5 0 3000 0\n", "statm.*VmRSS"),
        (" garbage-first heap   total 262144K, used 819K [0x0, 0x8)\n region size 1024K, 5 young\n" * 3, "jcmd.*jstat"),
        ("4242:\n\nNative Memory Tracking:\n\nTotal: reserved=3KB, committed=2KB\n", "jcmd.*jstat"),
        ("2026-11-20 10:00:00,062 - INFO - Memory: RSS=92.2 MB, VMS=1060.0 MB\n", "a log.*CSV"),
        ('{"metadata": {"guidellm_version": "0.5.0"}, "benchmarks": []}\n', "GuideLLM"),
        ("desc: --massif-out-file=x\ncmd: ./a\ntime_unit: i\n", "valgrind"),
        ("Process 12: python3 a.py\nPython v3.11.4 (/usr/bin/python3.11)\n\nThread 12 (idle): \"MainThread\"\n    run (a.py:10)\n", "profiler"),
        ("Per-node process memory usage (in MBs) for PID 12 (python3)\n          Node 0    Total\n", "numastat"),
        ('{"total_num_allocations": 1, "total_bytes_allocated": 9, "top": [{"size": 1}]}\n', "profiler"),
        ("Press p to pause, r to resume, q to quit.\n\n[System.Runtime]\n    CPU Usage (%)    0\n", "dotnet-counters collect"),
        ("[{total,369425},\n {processes,330121}]\n", "an Erlang or"),
        (" {memory,\n     [{total,3659726336},\n", "an Erlang or"),
        ("[\n  total: 369425,\n  processes: 330121,\n  processes_used: 330000,\n]\n", "or Elixir term"),
        ("%{atom: 500000, total: 9000}\n", "or Elixir term"),
        ("1234567 app.log\n1240001 app.log\n", "files with their sizes.*ps -o rss="),
        ("CONTAINER ID   IMAGE   COMMAND   NAMES   SIZE\nab12cd34ef56 web python web 12.1MB\n", "files with their sizes"),
        ("4242, 20000\n4243, 20000\n" * 9, "write a heading.*nvidia-smi"),
        ("1234 512000 9123456 /usr/bin/python3 -m vllm serve --port 8000 --model x\n", "write a heading"),
        ("-rw-r--r-- 1 root root 1234567 Nov 20 10:00 app.log\n", "files with their sizes"),
        ("Filesystem     1K-blocks     Used Available Use% Mounted on\n/dev/sda1 9 5 4 50% /\n", "files with their sizes"),
        ("Active connections: 100 \nserver accepts handled requests\n 9 9 20 \n", "status of nginx.*ps -o rss="),
        ("MAIN.uptime  3600  1.00 Child process uptime\n", "Varnish"),
        ("sockets: used 300\nTCP: inuse 20 orphan 0\n", "sockets"),
        ("  OBJS ACTIVE  USE OBJ SIZE  SLABS OBJ/SLAB CACHE SIZE NAME\n 900 800  99%    0.19K  40  21   170K dentry\n", "slabtop"),
        ("slabinfo - version: 2.1\n# name <active_objs>\n", "slabinfo.*SUnreclaim"),
        ("kmalloc-2k 1000 1000 2048 16 8 : tunables 0 0 0 : slabdata 63 63 0\n", "slabinfo.*SUnreclaim"),
        (" Active / Total Objects (% used)    : 100 / 200 (50.0%)\n", "slabtop.*SUnreclaim"),
        (" num     #instances         #bytes  class name (module)\n-----\n   1:  12369  1688872  [B (java.base@17)\n", "histogram of classes.*jstat"),
        ("Statistics:\n          MT     Count     TotalSize Class Name\n7f12     1000     24000 System.String\n", "histogram of classes"),
        ("G1 Heap:\n   capacity = 4294967296 (4096.0MB)\nHeap Usage:\n", "jmap.*jstat"),
        ("Status of node rabbit@h ...\nRuntime\n\nOS PID: 42\n", "rabbitmqctl.*formatter json"),
        ("Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free: 12345.\n", "whole machine"),
        ("nr_free_pages 900\nnr_inactive_file 10\n", "whole machine"),
        ("AAA,progname,nmon\nZZZZ,T0001,10:00:00,20-NOV-2026\n", "nmon.*pidstat"),
        ("7f00-7f01 rw-p 00000000 00:00 0    /lib/x.so\nSize: 132 kB\nRss: 40 kB\n", "smaps, .*VmRSS"),
        ("1234567\t/var/log\n" * 3, "files with their sizes.*ps -o rss="),
        ("jdk.GCHeapSummary {\n  startTime = 10:00:00.123\n  heapUsed = 1000.5 MB\n}\n", "jfr.*--json"),
        ("- time: 2026-11-20T10:00:00Z\n  rss_mib: 500\n", "is YAML"),
        ('rss{pod="a"} =>\n1 @[1700000000]\n2 @[1700000060]\n', "promtool.*--format=json"),
        ("servers.a.rss,1700000000,1700000600,300|1.0,2.0\n", "Graphite.*format=json"),
        ("Current memory usage is 10.5MB; Peak was 12.5MB\n" * 3, "a log.*CSV"),
        ("{:count=>10, :heap_live_slots=>2000}\n" * 3, "Ruby hash.*to_json"),
        ("# runtime.MemStats\n# Alloc = 1000\n# HeapAlloc = 1000\n", "pprof.*/metrics"),
        ("File: app\nType: inuse_space\nShowing nodes accounting for 512MB, 98% of 520MB total\n      flat  flat%   sum%\n     200MB 38.46% 38.46%\n", "pprof.*/metrics"),
        ("app [4242]: 64-bit    Footprint: 500 MB (16384 bytes per page)\n  Dirty  Clean\n 400 MB  0 B\n", "footprint.*ps -o rss="),
        ("Uptime: 36 Realtime: 36\n\n** MEMINFO in pid 4242 [com.example.app] **\n    Pss  Private\n    200  199\n", "dumpsys.*ps -o rss="),
        ("\nImage Name                     PID Session Name        Session#    Mem Usage\n========================= ======== ================ =========== ============\npython.exe                    1234 Console                    1  1,000,000 K\n", "tasklist.*/fo csv"),
        ("== ROCm System Management Interface ==\nGPU[0]\t\t: VRAM Total Used Memory (B): 68702699520\n", "rocm-smi.*--csv"),
        ("1203 /var/log/a.log\n1300 /var/log/a.log\n", "list of files"),
        ("#     date         total    used    free  shared  buff/cache  available\nSep 23 01:53:44 Mem:  257844  242762  1866  0  13215  12998\n" * 2, "output of free"),
        ("".join(f"12:52:2{i} AM   UID       PID    %usr %system  %guest   %CPU   CPU  Command\n12:52:2{i + 1} AM  1000      2907    0.00    0.00    0.00    0.00     4  bar\n\n12:52:2{i} AM   UID       PID  minflt/s  majflt/s     VSZ     RSS   %MEM  Command\n12:52:2{i + 1} AM  1000      2907      0.00      0.00 1970700   10644   0.07  bar\n\n" for i in range(6)), "another report begins.*pidstat -r"),
        ("PRM host 1795123456 2026/11/19 21:30:00 60 42 (java) S 4096 1820884 500000\n" * 3, "atop.*pidstat"),
        ("procstat,host=a memory_rss=500i,num_threads=4i 1795123456000000000\n" * 3, "line protocol.*json"),
        ("\nTimestamp                 CounterSamples\n---------                 --------------\n11/20/2026 10:00:00 AM    \\\\h\\process(a)\\working set :\n                          1073741824\n", "Get-Counter.*typeperf"),
        ("    time  rss\n0   10  500\n..  ...  ...\n239  99  740\n", "pandas shortened.*to_csv"),
        ("==42== HEAP SUMMARY:\n==42==     in use at exit: 72,704 bytes in 1 blocks\n", "profiler"),
        ("Top 10 lines\n#1: app/cache.py:42: 1000 KiB\n", "profiler"),
        ("REPORT RequestId: 1a\tDuration: 12.34 ms\tMemory Used: 99 MB\nREPORT RequestId: 1b\tDuration: 11.36 ms\tMemory Used: 98 MB\nREPORT RequestId: 1c\tDuration: 9.27 ms\tMemory Used: 97 MB\n", "not a table"),
        ("slot launch: id  0 | task 1 | processing task now\nslot update: id  0 | task 1 | prompt n_tokens = 20\nsrv update: all slots are idle now again\n" * 9, "not a table"),
        ("It grew all night and then the pod was killed by the kernel.\nNo idea why 5.\n", "not a table"),
    ],
)  # fmt: skip
def test_what_holds_no_series_is_named_with_what_to_record(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        judged(tmp_path, text, JudgeOptions(interval_s=60.0))

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "line",
    [
        "time,rss_bytes\n1," + "a" * 200_000 + ",5\n",
        'a="b" ' * 60 + '"\n',
        "a=b, " * 60 + "=\n",
        "12," * 20_000 + "12\n",
    ],
)
def test_a_line_that_fits_no_shape_is_no_matter_of_minutes(tmp_path: Path, line: str) -> None:
    begun_s = perf_counter()

    with pytest.raises(HybridbenchError):
        judged(tmp_path, line * 3)

    assert perf_counter() - begun_s < 5.0


@pytest.mark.parametrize(
    "text",
    [
        '{"metric": {"a": "b"}, "value": [1795169460,0, "1011000000,0"]}\n' * 3,
        '{"metric": {"a": "b"}, "value": [1, 2, "x"]}\n' * 3,
        "1700000000 2026-11-25T10:00:00Z\n" * 3,
    ],
)
def test_a_damaged_recording_is_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        judged(tmp_path, text)


def csv(heading: str, *columns: np.ndarray) -> str:
    return "\n".join(
        [heading, *(",".join(f"{cell:g}" for cell in row) for row in zip(*columns, strict=True))]
    )


MINUTES = np.arange(120.0)


@pytest.mark.parametrize("name", ["minutes", "time (minutes)", "elapsed_min", "uptime_minutes"])
def test_the_unit_of_a_time_is_in_its_name(tmp_path: Path, name: str) -> None:
    text = csv(f"{name},rss_mib", MINUTES, 500 + MINUTES)

    assert rates(judged(tmp_path, text)) == {"rss_mib": "60.0"}
    chosen = JudgeOptions(steady_at="10m", time_column=name)
    assert rates(judged(tmp_path, text, chosen)) == {"rss_mib": "60.0"}


def test_the_unit_of_a_chosen_time_column_is_asked_for_and_never_guessed(tmp_path: Path) -> None:
    text = csv("clock,rss_mib", MINUTES, 500 + MINUTES)

    with pytest.raises(ConfigError, match="unit of its numbers is unknown; write --time-column"):
        judged(tmp_path, text, JudgeOptions(time_column="clock"))
    asked = JudgeOptions(steady_at="10m", time_column="clock:min")
    assert rates(judged(tmp_path, text, asked)) == {"rss_mib": "60.0"}


def test_numbers_from_zero_that_may_be_milliseconds_need_a_unit(tmp_path: Path) -> None:
    for step in (60_000, 10_003, 10_350, 1_000, 500, 101, 100):
        text = csv("time,rss_mib", MINUTES * step, 500 + MINUTES)
        with pytest.raises(ConfigError, match="unit of its numbers is unknown; write --time-colu"):
            judged(tmp_path, text)

    text = csv("time,rss_mib", MINUTES * 60_000, 500 + MINUTES)
    ask = JudgeOptions(steady_at="10m", time_column="time:ms")
    assert rates(judged(tmp_path, text, ask)) == {"rss_mib": "60.0"}
    for step in (120, 300, 900, 3600):
        slower = csv("time,rss_mib", MINUTES * step, 500 + MINUTES * step / 60)
        assert rates(judged(tmp_path, slower)) == {"rss_mib": "60.0"}


def test_days_as_excel_counts_them_are_dates(tmp_path: Path) -> None:
    rows = [f"{45987.51 + row / 1440:.5f},{500 + row}" for row in ROWS]
    text = "\n".join(["time,rss_mib", *rows])

    assert rates(judged(tmp_path, text)) == {"rss_mib": "60.0"}
    half_days = csv("time,rss_mib", 45987 + MINUTES / 2, 500 + MINUTES)
    with pytest.raises(ConfigError, match="unit of its numbers is unknown"):
        judged(tmp_path, half_days)


@pytest.mark.parametrize(
    "form", ["%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d-%b-%Y", "%Y-%m-%d", "Excel"]
)
def test_a_day_alone_is_a_date(tmp_path: Path, form: str) -> None:
    days = [str(46346 + day) if form == "Excel" else f"{at(1440 * day):{form}}" for day in ROWS]
    rows = [f"{day};{500 + 48 * row}" for row, day in enumerate(days)]

    verdict = judged(tmp_path, "\n".join(["Date;rss_mib", *rows]), JudgeOptions(steady_at="1d"))

    assert rates(verdict) == {"rss_mib": "2.0"}


def test_a_day_beside_a_whole_date_is_not_part_of_it(tmp_path: Path) -> None:
    rows = [f"2026-11-20,{at(row).isoformat()},{500 + row}" for row in ROWS]

    assert rates(
        judged(
            tmp_path,
            "\n".join(["day,updated,rss_mib", *rows]),
            JudgeOptions(time_column="updated", steady_at="10m"),
        )
    ) == {"rss_mib": "60.0"}


def test_an_hour_beside_a_day_is_no_owner(tmp_path: Path) -> None:
    rows = [f"2026-11-{20 + row // 24},{row % 24},{500 + row}" for row in ROWS]

    with pytest.raises(ConfigError, match="share their time"):
        judged(tmp_path, "\n".join(["Date,Hour,rss_mib", *rows]))


def test_memory_beside_memory_is_no_process_id(tmp_path: Path) -> None:
    # ps -o rss=,vsz=
    text = "\n".join(f"{500000 + row // 3 * 4096} 900000" for row in ROWS)

    with pytest.raises(ConfigError, match="write a heading"):
        judged(tmp_path, text, JudgeOptions(interval_s=60.0))


def test_a_new_process_in_each_sample_hides_no_other(tmp_path: Path) -> None:
    def line(row: int) -> str:
        return f"{at(row).timestamp():.0f}\nroot 1234 1.0 2.0 9000000 {500000 + 1000 * row} ? Sl Nov18 0:20 python3 a.py\nroot {20001 + 7 * row} 0.0 0.0 11111 2000 pts/0 S+ 10:00 0:00 grep a.py"

    verdict = judged(tmp_path, "\n".join(map(line, range(300))))

    assert rates(verdict) == {'RSS{PID="1234"}': "58.6"}
    assert any("300 series of one row left out" in note for note in verdict.notes)


@pytest.mark.parametrize("form", ["JSON", "CSV"])
def test_times_that_recur_in_each_of_many_series_are_those_of_the_samples(
    tmp_path: Path, form: str
) -> None:
    pods = {f"pod-{n:02}": [2**30 + 2**20 * row * (n == 7) for row in ROWS] for n in range(25)}
    if form == "JSON":
        points = {pod: list(map(list, zip(MOMENTS, rss, strict=True))) for pod, rss in pods.items()}
        text = json.dumps([{"metric": {"pod": pod}, "values": points[pod]} for pod in pods])
    else:
        rows = [f"{pod},{at(row)},{pods[pod][row]}" for pod in pods for row in ROWS]
        text = "\n".join(["pod,time,rss_bytes", *rows])

    file = series_of(Source("series"), text)

    assert len(file.columns) == 25
    assert {int(np.ptp(column.value)) for column in file.columns} == {0, 119 * 2**20}


def test_a_gauge_that_cycles_is_one_series(tmp_path: Path) -> None:
    text = "\n".join(f"sessions {30 + row % 3}" for row in ROWS)

    assert judged(tmp_path, text, JudgeOptions(interval_s=3600.0)).kind is VerdictKind.CLEAN


@pytest.mark.parametrize("name", ["epoch", "step"])
def test_a_count_of_epochs_or_steps_is_no_time(tmp_path: Path, name: str) -> None:
    text = csv(f"{name},mem_mib", MINUTES + 1, 500 + MINUTES)

    with pytest.raises(ConfigError, match="no column is a time"):
        judged(tmp_path, text)
    with pytest.raises(ConfigError, match="unit of its numbers is unknown"):
        judged(tmp_path, text, JudgeOptions(time_column=name))
    ask = JudgeOptions(steady_at="10m", interval_s=60.0)
    assert rates(judged(tmp_path, text, ask)) == {"mem_mib": "60.0"}


def test_rows_of_two_processes_that_nothing_tells_apart_are_refused(tmp_path: Path) -> None:
    times = ZERO.timestamp() + 60 * MINUTES
    rows = [f"{t:.0f},{v:.0f}" for t in times for v in (5e8 + t, 9e8)]
    below = [f"{t + 7 * k:.0f},{v:.0f}" for k, v in enumerate((5e8, 9e8)) for t in times]
    turns = "\n".join(f"{v}" for i in ROWS for v in (500000 + 1000 * i, 33144))

    for text, said in ((rows, "share their time"), (below, "overlap")):
        with pytest.raises(ConfigError, match=f"{said}.*whose row it is"):
            judged(tmp_path, "\n".join(["time,rss_bytes", *text]))
    with pytest.raises(ConfigError, match="take turns between 2 levels"):
        judged(tmp_path, turns, JudgeOptions(interval_s=60.0))


def test_a_command_that_several_workers_run_does_not_tell_them_apart(tmp_path: Path) -> None:
    blocks = [
        f"  RSS COMMAND\n{800_001 + i % 3} gunicorn\n{2_000_001 + 2000 * i} gunicorn" for i in ROWS
    ]

    for heading in ("COMMAND", "NAME"):
        text = "\n".join(blocks).replace("COMMAND", heading)
        with pytest.raises(ConfigError, match="take turns between 2 levels"):
            judged(tmp_path, text, JudgeOptions(interval_s=60.0))


def test_a_gauge_that_cycles_beside_memory_is_of_one_process(tmp_path: Path) -> None:
    page = "\n".join(f"pool_size {30 + i % 3}\nrss_bytes {2**30 + 2**20 * i}" for i in ROWS)

    verdict = judged(tmp_path, page, JudgeOptions(steady_at="10m", interval_s=60.0))

    assert rates(verdict) == {"rss_bytes": "60.0"}
    for beside in ("swap_bytes,{0}", "available_bytes,{1}"):
        name, cell = beside.split(",")
        rows = [f"{800 + i},{cell}\n500,{cell}".format(0, 10**9 - 5 * i % 7) for i in ROWS]
        with pytest.raises(ConfigError, match="rss: the rows take turns between 2 levels"):
            judged(tmp_path, "\n".join([f"rss,{name}", *rows]), JudgeOptions(interval_s=60.0))


def test_totals_below_a_table_of_smem_are_no_process(tmp_path: Path) -> None:
    def sample(row: int) -> str:
        sizes = [800_000 + row % 3, 2_000_000 + 2000 * row]
        names = [
            f" {4000 + k} root     /usr/bin/python3 -m srv       {0:>8} {s:>8}"
            for k, s in enumerate(sizes)
        ]
        return "\n".join(
            ["  PID User     Command                 Swap      RSS ", *names, *totals(sizes)]
        )

    def totals(sizes: list[int]) -> list[str]:
        return (
            ["-" * 60, f"    2 1                            {0:>8} {sum(sizes):>8} "]
            if total
            else []
        )

    ask, total = JudgeOptions(interval_s=60.0, steady_at="10m"), False
    assert rates(judged(tmp_path, "\n".join(map(sample, ROWS)), ask)) == {
        'RSS{PID="4001"}': "117.2"
    }
    total = True
    with pytest.raises(ConfigError, match="4 cells where the heading has 5"):
        judged(tmp_path, "\n".join(map(sample, ROWS)), ask)


GERMAN, FRENCH, SWISS = (
    str.maketrans(",.", ".,"),
    str.maketrans(",.", "\u202f,"),
    str.maketrans(",", "'"),
)
GROUPED: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "German": ("RSS (MiB)", "60.0", lambda mib: f"{mib:,.2f}".translate(GERMAN)),
    "German, with units": ("RSS", "60.0", lambda mib: f"{mib:,.2f} MiB".translate(GERMAN)),
    "French": ("RSS", "60.0", lambda mib: f"{mib * 1.048576:,.2f} Mo".translate(FRENCH)),
    "Swiss": ("RSS", "60.0", lambda mib: f"{mib:,.2f} MiB".translate(SWISS)),
    "German, past 999": ("RSS (MiB)", "60.0", lambda mib: f"{mib:,.0f}".translate(GERMAN)),
    "English, past 999": ("RSS (MiB)", "60.0", lambda mib: f"{mib:,.0f}"),
}


@pytest.mark.parametrize("locale", GROUPED)
def test_separators_of_thousands_are_no_decimal_points(tmp_path: Path, locale: str) -> None:
    name, rate, write = GROUPED[locale]
    rows = [f"{at(row).isoformat()};{write(940 + row)}" for row in ROWS]

    assert rates(judged(tmp_path, "\n".join([f"Zeit;{name}", *rows]))) == {name: rate}


def test_dates_decide_what_a_point_before_three_digits_is(tmp_path: Path) -> None:
    sizes = [f"{1800 + row:,}" for row in ROWS]
    rows = [f"{at(row):%d.%m.%Y %H:%M:%S};{sizes[row].translate(GERMAN)}" for row in ROWS]
    verdict = judged(tmp_path, "\n".join(["Zeit;RSS (MiB)", *rows]))
    assert rates(verdict) == {"RSS (MiB)": "60.0"}
    assert any("1.800 is read as 1800; if that is wrong" in note for note in verdict.notes)

    rows = [f"{at(row).isoformat()};{1 + row / 1000:.3f}" for row in ROWS]
    verdict = judged(tmp_path, "\n".join(["time;RSS (GiB)", *rows]))
    assert rates(verdict) == {"RSS (GiB)": "61.4"}
    assert any("1.000 is read as 1.000; if that is wrong" in note for note in verdict.notes)

    for mark in "\t ":
        rows = [f"{at(row).isoformat()}{mark}{sizes[row]}" for row in ROWS]
        verdict = judged(tmp_path, "\n".join([f"time{mark}rss_mib", *rows]))
        assert rates(verdict) == {"rss_mib": "60.0"}
        assert any("1,800 is read as 1800; if that is wrong" in note for note in verdict.notes)
        with pytest.raises(ConfigError, match=r"column nodes: is 1,800 1800 or 1\.800\?"):
            judged(tmp_path, "\n".join([f"time{mark}nodes", *rows]))


@pytest.mark.parametrize("written", ["0x{:x}", "< {} MB", "{} MB used", "mem={}", "'{}'"])
def test_memory_in_a_form_that_is_not_read_leaves_the_file_undecided(
    tmp_path: Path, written: str
) -> None:
    cells = [written.format(1000 + row) for row in ROWS]
    rows = [f"{at(row).isoformat()};{2**30};{cells[row]}" for row in ROWS]
    said = f"{cells[0]!r} in line 2 is not read as a number"

    verdict = judged(tmp_path, "\n".join(["time;rss_bytes;heap", *rows]))

    assert verdict.kind is VerdictKind.INCONCLUSIVE
    row = verdict.rows[1]
    assert (row.name, row.result.reason, row.result.rate_per_hour) == ("heap", said, None)
    assert row.result.window_s == (0.0, 7140.0)
    with pytest.raises(HybridbenchError, match=f"heap: {re.escape(said)}"):
        judged(tmp_path, "\n".join(["time;heap", *(row.replace(f"{2**30};", "") for row in rows)]))
    chosen = JudgeOptions(steady_at="10m", metrics=("rss_bytes",))
    assert judged(tmp_path, "\n".join(["time;rss_bytes;heap", *rows]), chosen).kind == "CLEAN"
    same = [row.replace(cells[i], cells[0]) for i, row in enumerate(rows)]
    assert judged(tmp_path, "\n".join(["time;rss_bytes;heap", *same])).kind == "CLEAN"


@pytest.mark.parametrize("foot", ["Average,620.0", "\nMax,739.5\nMin,500.5\nMean,620.0", ",620.0"])
def test_what_stands_below_a_table_is_left_out(tmp_path: Path, foot: str) -> None:
    rows = [f"{at(row).isoformat()},{500 + row}.5" for row in ROWS]
    text = "\n".join(["time,rss_mib", *rows])

    assert rates(judged(tmp_path, f"{text}\n{foot}\n")) == {"rss_mib": "60.0"}
    with pytest.raises(ConfigError, match="is not a time"):
        judged(tmp_path, f"{text}\n{foot}\n{rows[-1]}\n")


def test_a_time_or_a_label_is_no_memory_that_is_not_read(tmp_path: Path) -> None:
    rows = [
        f"{at(row).isoformat()},{at(row - 1).isoformat()},{kind},{2**30 * len(kind)},{row}/x"
        for row in ROWS
        for kind in ("heap", "stack")
    ]

    text = "\n".join(["time,mem_start,memory_type,rss_bytes,part", *rows])

    assert judged(tmp_path, text).kind is VerdictKind.CLEAN


def test_other_numbers_that_are_not_read_are_named(tmp_path: Path) -> None:
    rows = [f"{at(row).isoformat()};{2**30};{row} 00 0" for row in ROWS]

    verdict = judged(tmp_path, "\n".join(["time;rss_bytes;level", *rows]))

    assert verdict.kind is VerdictKind.CLEAN
    assert "level: '0 00 0' in line 2 is not read as a number: not judged" in verdict.notes


def test_young_spaces_leave_nothing_undecided(tmp_path: Path) -> None:
    rows = [f"{i * 7 % 100}.00 {i * 37 % 100}.50 40.00 {3 * i} {i // 24}" for i in ROWS]

    verdict = judged(tmp_path, "\n".join(["S1 E O YGC FGC", *rows]), JudgeOptions(interval_s=60.0))

    assert verdict.kind is VerdictKind.CLEAN


def test_swap_beside_a_total_with_cache_does_not_make_it_clean(tmp_path: Path) -> None:
    rows = [
        f"{at(i).timestamp():.0f}\nMemoryCurrent={2**30 + 2**20 * i + 1}\nMemorySwapCurrent=0\n"
        "MemoryMax=8589934592\nTasksCurrent=12" for i in ROWS
    ]  # fmt: skip
    verdict = judged(tmp_path, "\n".join(rows))

    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert "MemoryMax" in verdict.not_judged


def test_a_process_id_is_known_below_other_keys(tmp_path: Path) -> None:
    samples = [
        json.dumps({"@timestamp": at(i).isoformat(), "process": {"pid": 100 + i // 60, "rss_bytes": 2**30 + 2**20 * (i % 60)}})
        for i in ROWS
    ]  # fmt: skip
    notes = [note for row in judged(tmp_path, "\n".join(samples)).rows for note in row.notes]

    assert any("restarted after 1h" in note for note in notes)


@pytest.mark.parametrize("gap", ["", "NaN", "timeout"])
def test_the_first_rows_count_where_another_column_begins_later(tmp_path: Path, gap: str) -> None:
    rows = [
        f"{at(i).isoformat()},{gap if i < 2 else 500 + i if i < 90 else ''},{'' if i < 40 else 900 + i}"
        for i in ROWS
    ]

    verdict = judged(tmp_path, "\n".join(["time,old_rss_mib,new_rss_mib", *rows]))

    assert rates(verdict) == {"old_rss_mib": "60.0", "new_rss_mib": "60.0"}


@pytest.mark.parametrize("form", ["NUL bytes", "sep=", "bars"])
def test_what_a_program_adds_around_a_table_is_left_out(tmp_path: Path, form: str) -> None:
    rows = [f"{at(row):%Y-%m-%d %H:%M:%S};{2**30 + 2**20 * row}" for row in ROWS]
    text = "\n".join(["time;rss_bytes", *rows])
    text = {"NUL bytes": f"{text}\n{chr(0) * 4096}", "sep=": f'"sep=;"\n{text}',
            "bars": text.replace(";", " | ")}[form]  # fmt: skip

    assert rates(judged(tmp_path, text)) == {"rss_bytes": "60.0"}


def test_a_state_that_comes_and_goes_is_no_owner(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    states = np.where(rng.random(120) < 0.5, "busy", "idle")
    rows = [f"{i},{500 + i},{state}" for i, state in enumerate(states)]

    verdict = judged(tmp_path, "\n".join(["minutes,rss_mib,mode", *rows]))

    assert rates(verdict) == {"rss_mib": "60.0"}


def test_page_cache_is_shown_and_the_column_to_judge_is_named(tmp_path: Path) -> None:
    text = "\n".join(
        f"anon 24000000\nfile {10**8 + 10**6 * i}\nslab_reclaimable {10**6 * i}" for i in ROWS
    )

    verdict = judged(tmp_path, text, JudgeOptions(steady_at="10m", interval_s=60.0))

    assert [row.name for row in verdict.rows] == ["anon"]
    assert verdict.kind is VerdictKind.CLEAN
    assert verdict.not_judged == ("file", "slab_reclaimable")
    assert any(
        "file, slab_reclaimable: page cache" in n and "judge anon" in n for n in verdict.notes
    )
    chosen = JudgeOptions(("file",), steady_at="10m", interval_s=60.0)
    assert rates(judged(tmp_path, text, chosen)) == {"file": "57.2"}


CGTOP = "Control Group       Tasks   %CPU   Memory  Input/s Output/s\n"


@pytest.mark.parametrize(
    "sample",
    [
        lambda i: f"MemoryCurrent={10**9 + 10**6 * i}",
        lambda i: f"     Memory: {500 + i}.3M (peak: {900 + i}.1M swap: 0B)",
        lambda i: f"{CGTOP * (not i)}system.slice/a.service   12    1.5  {500 + i}.0M   -   -",
        lambda i: f"system.slice/a.service 12 - {10**9 + 10**6 * i} - -\na.slice 1 - 4096 - -",
        lambda i: f"{CGTOP}a.service   12    1.5  {500 + i}.0M   -   -\nb.service 1 1.0 8.0M - -",
    ],
)
def test_growth_of_a_total_that_contains_the_cache_proves_nothing(
    tmp_path: Path, sample: Callable[[int], str]
) -> None:
    ask = JudgeOptions(steady_at="10m", interval_s=60.0)
    grows = "\n".join(map(sample, ROWS))
    flat = "\n".join(f"MemoryCurrent={10**9 + i % 2}" for i in ROWS)

    rows = judged(tmp_path, grows, ask).rows
    (row,) = (row for row in rows if row.verdict is not VerdictKind.CLEAN)

    assert row.verdict is VerdictKind.INCONCLUSIVE
    assert "page cache" in row.result.reason
    assert "anon of memory.stat" in row.result.reason
    assert not any("not judged" in note for note in judged(tmp_path, grows, ask).notes)
    assert judged(tmp_path, flat, ask).kind is VerdictKind.CLEAN


def queue(leak_mib_per_h: float) -> str:
    rng = np.random.default_rng(1)
    rss = 500 + leak_mib_per_h * MINUTES / 60 + rng.normal(0, 0.1, MINUTES.size)
    return csv("minutes,rss_mib,queue_len", MINUTES, rss, rng.integers(0, 10, MINUTES.size))


def test_a_threshold_decides_by_its_column_beside_the_analysis(tmp_path: Path) -> None:
    ask = JudgeOptions(steady_at="10m", thresholds=("rss_mib<20MiB/h",))

    flat, grows = judged(tmp_path, queue(0.0), ask), judged(tmp_path, queue(60.0), ask)

    assert judged(tmp_path, queue(0.0)).kind is VerdictKind.INCONCLUSIVE
    assert (flat.kind, grows.kind) == (VerdictKind.CLEAN, VerdictKind.LEAK)
    assert "undecided, and not counted because a threshold decides: queue_len" in flat.notes


def test_another_column_that_leaks_counts_beside_a_threshold_unless_only_that_is_judged(
    tmp_path: Path,
) -> None:
    ask = JudgeOptions(steady_at="10m", thresholds=("queue_len<100/h",))
    only = JudgeOptions(steady_at="10m", thresholds=("queue_len<100/h",), only=True)

    both, alone = judged(tmp_path, queue(60.0), ask), judged(tmp_path, queue(60.0), only)

    assert both.kind is VerdictKind.LEAK
    assert (alone.kind, [row.name for row in alone.rows]) == (VerdictKind.CLEAN, ["queue_len"])


def test_a_clock_is_no_level_but_a_level_that_rises_with_it_is(tmp_path: Path) -> None:
    rows = [f"{60 * row},{60 * row},{row},{60000 * row},{40 + 60 * row}" for row in ROWS]

    heading = "time,wtime,wall_minutes_time (min),elapsed_ms,fds"
    verdict = judged(tmp_path, "\n".join([heading, *rows]))

    assert [row.name for row in verdict.rows] == ["fds"]
    assert verdict.kind is VerdictKind.LEAK
    rows = [f"{at(row).isoformat()},{at(row).timestamp():.0f}000000000,40" for row in ROWS]
    verdict = judged(tmp_path, "\n".join(["time,memory.timestamp,fds", *rows]))
    assert [row.name for row in verdict.rows] == ["fds"]
    rows = [f"{at(row).isoformat()},{60 * (row % 60)},40" for row in ROWS]
    verdict = judged(tmp_path, "\n".join(["time,elapsed_sec,fds", *rows]))
    assert [row.name for row in verdict.rows] == ["fds"]


@pytest.mark.parametrize("grows", [False, True])
def test_pods_that_replace_each_other_are_judged_one_by_one(tmp_path: Path, grows: bool) -> None:
    def line(row: int) -> str:
        rss = 3 * 2**30 + row % 3 + 2**20 * (row % 120) * grows
        return f"{at(row).isoformat()},vllm-{row // 120},{rss}"

    verdict = judged(tmp_path, "\n".join(["time,pod,rss_bytes", *map(line, range(360))]))

    leaks = {f'rss_bytes{{pod="vllm-{pod}"}}': "60.0" for pod in range(3)}
    assert rates(verdict) == (leaks if grows else {})
    assert len(verdict.rows) == 3


@pytest.mark.parametrize(
    ("heading", "beside"),
    [
        ("restarts", lambda row: row // 80),
        ("uptime_s", lambda row: 5 + 60 * (row % 80)),
        ("process_uptime_seconds", lambda row: 5 + 60 * (row % 80)),
    ],
)
def test_a_count_of_restarts_and_an_uptime_show_where_a_process_began(
    tmp_path: Path, heading: str, beside: Callable[[int], int]
) -> None:
    rows = [f"{at(i).isoformat()},{beside(i)},{2**29 + 2**21 * (i % 80)}" for i in range(240)]

    verdict = judged(tmp_path, "\n".join([f"time,{heading},rss_bytes", *rows]))

    assert rates(verdict) == {"rss_bytes": "120.0"}
    assert [row.name for row in verdict.rows] == ["rss_bytes"]
    assert any("restarted after 1h20m" in note for row in verdict.rows for note in row.notes)


def test_what_was_allocated_is_no_level_beside_what_was_freed(tmp_path: Path) -> None:
    names = "time,total_allocated_objects,total_freed_objects,b.all.allocated,b.all.freed,held"
    rows = [f"{60 * i},{10**8 + 9000 * i},{9000 * i},{10**6 * i},{10**6 * i},40" for i in ROWS]

    verdict = judged(tmp_path, "\n".join([names, *rows]))

    assert [row.name for row in verdict.rows] == ["held"]


@pytest.mark.parametrize(
    ("names", "cached"),
    [
        ("used,free,buff,cach", 2),  # dstat
        ("[MEM]Anon,[MEM]Free,[MEM]Used,[MEM]Buf,[MEM]Cached", 3),  # collectl
        ("memory.rss,memory.swap,memory.usage,memory.working_set,memory.cache", 1),  # cAdvisor
        ("available,used,free,active,inactive,buffers,cached", 4),  # psutil
        ("memory.stat:anon,memory.stat:file,memory.stat:inactive_file", 2),  # grep
        ("windows_process_private_bytes,windows_memory_cache_bytes", 1),
        ("memory-used,memory-buffered,memory-cached", 2),  # collectd
        ("anonBytes,fileBytes,inactiveFileBytes", 2),
        ("vm.memory.size[available],vm.memory.size[cached]", 1),  # Zabbix
        ("sum(node_memory_MemAvailable_bytes),sum(node_memory_Cached_bytes)", 1),
    ],
)
def test_the_cache_of_a_machine_has_other_names_and_is_no_level(
    tmp_path: Path, names: str, cached: int
) -> None:
    width = names.count(",") + 1
    of_cache = {width - 1} | ({2} if "usage" in names or "Used" in names else set())

    def cells(row: int) -> str:
        return ",".join(str(2**31 + 2**20 * row * (i in of_cache)) for i in range(width))

    verdict = judged(
        tmp_path, "\n".join([f"time,{names}", *(f"{60 * i},{cells(i)}" for i in ROWS)])
    )

    assert verdict.kind is VerdictKind.CLEAN
    (note,) = (note for note in verdict.notes if "page cache" in note)
    assert note.partition(": page cache")[0].count(",") + 1 >= cached


@pytest.mark.parametrize(
    "names", ["rss,vms", "rss,heapUsed,heapTotal", "memory.rss,memory.usage,memory.working_set"]
)
def test_numbers_that_cannot_be_the_bytes_of_a_process_have_no_unit(
    tmp_path: Path, names: str
) -> None:
    width = names.count(",") + 1

    def rate(scale: int, level: int = 500) -> str:
        rows = [f"{60 * i}" + f",{scale * (level + i)}" * width for i in ROWS]
        verdict = judged(tmp_path, "\n".join([f"time,{names}", *rows]))
        return rates(verdict)[names.split(",", maxsplit=1)[0]]

    assert rate(2**20) == "60.0"
    assert rate(1) == "60?"
    # 8.8 GiB in KB: if these were bytes, resident memory would be whole pages.
    assert rate(2**10, level=9000) == "6.14e+04?"


@pytest.mark.parametrize(("grows", "kind"), [(True, "INCONCLUSIVE"), (False, "CLEAN")])
@pytest.mark.parametrize(("name", "unit"), [("RES", "g"), ("rss_gib", "")])
def test_few_digits_that_rise_bound_no_growth(
    tmp_path: Path, grows: bool, kind: str, name: str, unit: str
) -> None:
    rows = [f"{at(i).isoformat()},{1.2 + i / 1024 * grows:.1f}{unit}" for i in range(240)]

    verdict = judged(tmp_path, "\n".join([f"time,{name}", *rows]))

    assert verdict.kind.value == kind
    if grows:
        (row,) = verdict.rows
        assert row.result.reason.startswith("it rises, and is written in steps of 102 MiB")


@pytest.mark.parametrize(
    "name",
    [
        *("net_in", "network out", "gc_time_ms", "total_pause_ns", "total_connections", "accepted"),
        *("dotnet.gc.heap.total_allocated (By)", "seq", "expired_keys", "total_net_input_bytes"),
        *("CumConns", "memoryInfo.pfaults", "accepted conn", "in_bytes", "ifOutOctets", "bytes_in"),
        *("gc_num", "gc_bytes_reclaimed", "downloaded_mb", "transfer_gb", "swapped_in"),
        *("gc_pause_total_ms", "totalRequests", "Page life expectancy", "VmHWM_kb"),
        r"\\host\Process(python)\% Processor Time",
        *("memory.events.high", "memory_events_local_oom_kill", "num_processes_started"),
        *("proc_ticks", "host_jiffies", "bus_dropped_full"),
        'tasks{State="FINISHED"}',
    ],
)
def test_what_a_healthy_program_counts_is_no_level(tmp_path: Path, name: str) -> None:
    rows = [f"{60 * i},{9000 + 7 * i},40" for i in ROWS]

    verdict = judged(tmp_path, "\n".join([f"time,{name},held", *rows]))

    assert [row.name for row in verdict.rows] == ["held"]


def test_free_space_on_a_disk_that_only_falls_is_undecided_like_the_space_in_use(
    tmp_path: Path,
) -> None:
    rows = [f"{60 * i},{2**30},{2**39 - 2**20 * i}" for i in ROWS]

    verdict = judged(tmp_path, "\n".join(["time,rss_bytes,disk_free_bytes", *rows]))

    assert [row.verdict.value for row in verdict.rows] == ["CLEAN", "INCONCLUSIVE"]


@pytest.mark.parametrize(
    "name",
    [
        *("messages", "log_lines", "disk_used_bytes", "wal_bytes", "db_total_size_in_bytes"),
        *("users_registered", "inode_used", "allocations", "frames"),
    ],
)
def test_a_count_of_events_or_a_backlog_is_undecided_unless_it_is_chosen(
    tmp_path: Path, name: str
) -> None:
    assert not meaning_of(f"pending_{name}").may_count
    rows = [f"{60 * i},{2**30},{2**27 + 2**20 * i}" for i in ROWS]
    text = "\n".join([f"time,rss_bytes,{name}", *rows])

    verdict = judged(tmp_path, text)
    chosen = judged(tmp_path, text, JudgeOptions(steady_at="10m", metrics=(name,)))

    assert [row.verdict.value for row in verdict.rows] == ["CLEAN", "INCONCLUSIVE"]
    assert f"--metric '{name}'" in verdict.rows[1].result.reason
    assert chosen.kind is VerdictKind.LEAK


@pytest.mark.parametrize("name", ["accuracy", "score", "lr_x"])
def test_what_has_no_word_for_something_held_may_count_beside_memory(
    tmp_path: Path, name: str
) -> None:
    rows = [f"{60 * i},{2**30},{1000 + 7 * i}" for i in ROWS]
    text, ask = "\n".join([f"time,rss_bytes,{name}", *rows]), JudgeOptions(steady_at="10m")

    verdict = judged(tmp_path, text)
    assert [row.verdict.value for row in verdict.rows] == ["CLEAN", "INCONCLUSIVE"]
    assert judged(tmp_path, text, replace(ask, metrics=(name,))).kind is VerdictKind.LEAK
    assert judged(tmp_path, text.replace("rss_bytes", "lag")).kind is VerdictKind.LEAK
    for held in ("open_sessions", "eventListeners", "goroutines", "heap_live_slots"):
        assert judged(tmp_path, text.replace(name, held)).kind is VerdictKind.LEAK


@pytest.mark.parametrize("unit", [None, "KiB"])
def test_numbers_alone_that_only_rise_are_undecided_without_a_unit(
    tmp_path: Path, unit: str | None
) -> None:
    ask = JudgeOptions(steady_at="10m", interval_s=60.0, unit=unit)

    verdict = judged(tmp_path, "\n".join(str(12345 + 5001 * i) for i in ROWS), ask)

    assert verdict.kind is (VerdictKind.LEAK if unit else VerdictKind.INCONCLUSIVE)
    with pytest.raises(ConfigError, match="the numbers have no times; give the time between"):
        judged(tmp_path, "12345\n17346\n")


def test_memory_that_is_free_is_no_level_and_what_is_available_has_a_word_on_caches(
    tmp_path: Path,
) -> None:
    rows = [f"{60 * i},{2**33 - 2**20 * i}" for i in ROWS]

    with pytest.raises(HybridbenchError, match="free memory that caches fill: not judged, judge"):
        judged(tmp_path, "\n".join(["time,free memory", *rows]))
    verdict = judged(tmp_path, "\n".join(["time,available_bytes", *rows]))

    assert rates(verdict) == {"available_bytes": "60.0"}
    assert any("what does not falls as the cache fills" in note for note in verdict.notes)


@pytest.mark.parametrize("name", ["disk_free_bytes", "node_filesystem_avail_bytes", "fs_avail_mb"])
def test_a_disk_that_fills_is_undecided(tmp_path: Path, name: str) -> None:
    rows = [f"{60 * i},{2**30},{2**35 - 2**20 * i}" for i in ROWS]

    verdict = judged(tmp_path, "\n".join([f"time,rss_bytes,{name}", *rows]))

    assert [row.verdict.value for row in verdict.rows] == ["CLEAN", "INCONCLUSIVE"]
