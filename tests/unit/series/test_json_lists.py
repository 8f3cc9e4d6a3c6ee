"""JSON of monitoring services and exporters: no list of samples is dropped, no owner is lost."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hybridbench.records.finding import VerdictKind
from hybridbench.series.judge import FileVerdict, JudgeOptions, judge_file

ZERO = datetime(2026, 11, 20, 10, tzinfo=UTC)
ROWS = range(120)
DATES = [(ZERO + timedelta(minutes=row)).strftime("%Y-%m-%dT%H:%M:%SZ") for row in ROWS]
SECONDS = [ZERO.timestamp() + 60 * row for row in ROWS]
# Only the second of two owners grows, by 60 MiB/h.
FLAT = [2**30 + row % 3 for row in ROWS]
GROWS = [2**30 + 2**20 * row for row in ROWS]
TWO = (("a", FLAT), ("b", GROWS))
DATED = list(zip(DATES, GROWS, strict=True))
TIMED = list(zip(SECONDS, GROWS, strict=True))


def judged(tmp_path: Path, *documents: object, options: JudgeOptions | None = None) -> FileVerdict:
    path = tmp_path / "series.json"
    path.write_text("\n".join(map(json.dumps, documents)))
    return judge_file(str(path), options or JudgeOptions(steady_at="10m"))


def rates(verdict: FileVerdict) -> dict[str, str]:
    """Return the rates of all leaks in MiB/h, with ``?`` if the column's unit is unknown."""
    return {
        row.name: f"{row.result.rate_per_hour.value / 2**20:.1f}{'' if row.unit_known else '?'}"
        for row in verdict.rows
        if row.verdict is VerdictKind.LEAK and row.result.rate_per_hour is not None
    }


DOCUMENTS: dict[str, tuple[object, dict[str, str]]] = {
    # Newest first, as the service answers.
    "Google Cloud": (
        {
            "timeSeries": [
                {
                    "metric": {"type": "kubernetes.io/container/memory/used_bytes"},
                    "resource": {"type": "k8s_container", "labels": {"pod_name": pod}},
                    "points": [
                        {"interval": {"endTime": t}, "value": {"int64Value": f"{v}"}}
                        for t, v in zip(DATES[::-1], values[::-1], strict=True)
                    ],
                }
                for pod, values in TWO
            ]
        },
        {'kubernetes.io/container/memory/used_bytes{resource.labels.pod_name="b"}': "60.0"},
    ),
    "Azure": (
        {
            "namespace": "Microsoft.Compute",
            "value": [
                {
                    "name": {"value": "WorkingSet", "localizedValue": "Working set"},
                    "unit": "Bytes",
                    "timeseries": [{"data": [{"timeStamp": t, "average": v} for t, v in DATED]}],
                }
            ],
        },
        {"WorkingSet (bytes) (average)": "60.0"},
    ),
    "OpenTSDB": (
        [
            {
                "metric": "proc.rss",
                "tags": {"host": host},
                "aggregateTags": [],
                "dps": {f"{t:.0f}": v for t, v in zip(SECONDS, values, strict=True)},
            }
            for host, values in TWO
        ],
        {'proc.rss{tags.host="b"}': "60.0?"},
    ),
    "Elasticsearch, terms over time": (
        {
            "took": 5,
            "aggregations": {
                "pods": {
                    "buckets": [
                        {
                            "key": pod,
                            "doc_count": 120,
                            "minutes": {
                                "buckets": [
                                    {"key_as_string": t, "key": int(s * 1000), "rss": {"value": v}}
                                    for t, s, v in zip(DATES, SECONDS, values, strict=True)
                                ]
                            },
                        }
                        for pod, values in TWO
                    ]
                }
            },
        },
        {'rss.value{parent.key="b"}': "60.0?"},
    ),
    "InfluxDB, by a tag": (
        {
            "results": [
                {
                    "series": [
                        {
                            "name": "procstat",
                            "tags": {"host": host},
                            "columns": ["time", "memory_rss"],
                            "values": [list(point) for point in zip(DATES, values, strict=True)],
                        }
                        for host, values in TWO
                    ]
                }
            ]
        },
        {'memory_rss{tags.host="b"}': "60.0?"},
    ),
    "OpenTelemetry": (
        {
            "resourceMetrics": [
                {
                    "resource": {"attributes": [{"key": "pid", "value": {"stringValue": "7"}}]},
                    "scopeMetrics": [
                        {
                            "scope": {"name": "psutil"},
                            "metrics": [
                                {
                                    "name": "process.memory.usage",
                                    "unit": "By",
                                    "gauge": {
                                        "dataPoints": [
                                            {"timeUnixNano": f"{s:.0f}000000000", "asInt": f"{v}"}
                                            for s, v in TIMED
                                        ]
                                    },
                                }
                            ],
                        }
                    ],
                }
            ]
        },
        {"process.memory.usage (bytes)": "60.0"},
    ),
    "sadf -j": (
        {
            "sysstat": {
                "hosts": [
                    {
                        "nodename": "h",
                        "statistics": [
                            {
                                "timestamp": {"date": t[:10], "time": t[11:19], "utc": 1},
                                "memory": {"memfree": 2**22 - v // 1024, "swpused": v / 1024},
                            }
                            for t, v in DATED
                        ],
                    }
                ]
            }
        },
        {"memory.swpused": "0.1?"},
    ),
    "Netdata": (
        {"labels": ["time", "rss_bytes"], "data": [list(p) for p in TIMED]},
        {"rss_bytes": "60.0"},
    ),
    "ClickHouse": (
        {
            "meta": [{"name": "event_time", "type": "DateTime"}, {"name": "rss_bytes"}],
            "data": [list(point) for point in zip(DATES, map(str, GROWS), strict=True)],
            "rows": 120,
        },
        {"rss_bytes": "60.0"},
    ),
    "Zabbix": (
        {"result": [{"itemid": "23", "clock": f"{s:.0f}", "value": v} for s, v in TIMED]},
        {"value": "60.0?"},
    ),
    "New Relic": (
        [
            {"beginTimeSeconds": s, "endTimeSeconds": s + 60, "average.rss_bytes": v}
            for s, v in TIMED
        ],
        {"average.rss_bytes": "60.0"},
    ),
    "a list for each device": (
        {
            f"gpu{name}": [{"t": 60 * row, "used_bytes": values[row]} for row in ROWS]
            for name, values in TWO
        },
        {'used_bytes{series="gpub"}': "60.0"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("service", DOCUMENTS)
def test_every_list_of_samples_is_read(tmp_path: Path, service: str) -> None:
    document, expected = DOCUMENTS[service]
    assert rates(judged(tmp_path, document)) == expected


@pytest.mark.parametrize("functions", [["average"], ["average", "max"]])
def test_numbers_in_a_list_beside_the_time_are_of_that_sample(
    tmp_path: Path, functions: list[str]
) -> None:
    samples = [
        {
            "beginTimeSeconds": t - 60, "endTimeSeconds": t, "inspectedCount": 60,
            "results": [{name: value} for name in functions],
        }
        for t, value in TIMED
    ]  # fmt: skip

    verdict = judged(tmp_path, {"timeSeries": samples})

    assert rates(verdict) == dict.fromkeys(functions, "60.0?")
    assert not any("not read" in note for note in verdict.notes)


def container(row: int, *, anon: int, file: int) -> dict[str, object]:
    """Return a line of the Docker API's stream; all else is as for a busy, healthy container."""
    kernel = {
        "anon": anon, "active_anon": 0, "inactive_anon": anon, "file": file,
        "active_file": file // 3, "inactive_file": file - file // 3,
        "slab_reclaimable": file // 100, "pgfault": 1000 * row, "pgactivate": 10 * row,
        "workingset_refault_file": 5 * row, "thp_fault_alloc": row,
    }  # fmt: skip
    return {
        "read": f"{DATES[row][:-1]}.123456789Z",
        "name": "/engine",
        "blkio_stats": {"io_service_bytes_recursive": [{"op": "read", "value": 10**6 * row}]},
        "cpu_stats": {"cpu_usage": {"total_usage": 10**9 * row}, "system_cpu_usage": 10**10 * row},
        "memory_stats": {"usage": anon + file, "stats": kernel, "limit": 33 * 10**9},
        "networks": {
            "eth0": {"rx_bytes": 5000 * row, "rx_packets": 50 * row, "tx_bytes": 70 * row}
        },
    }


def test_page_cache_and_counters_of_docker_are_no_leak(tmp_path: Path) -> None:
    healthy = [container(row, anon=2**30, file=GROWS[row]) for row in ROWS]
    leaking = [container(row, anon=GROWS[row], file=2**28) for row in ROWS]

    verdict = judged(tmp_path, *healthy)
    assert verdict.kind is VerdictKind.CLEAN
    assert any("blkio_stats.io_service_bytes_recursive" in note for note in verdict.notes)
    assert rates(judged(tmp_path, *leaking)) == {
        "memory_stats.stats.anon": "60.0",
        "memory_stats.stats.inactive_anon": "60.0",
    }


def test_processes_too_many_to_read_do_not_hide_the_memory_beside_them(tmp_path: Path) -> None:
    processes = [{"pid": n, "rss_mib": 50.5 + n} for n in range(300)]
    lines = [
        {"ts": date, "rss_bytes": rss, "processes": processes}
        for date, rss in zip(DATES[:40], GROWS, strict=False)
    ]

    verdict = judged(tmp_path, *lines)

    assert [row.name for row in verdict.rows] == ["rss_bytes"]
    assert "lists are not read: processes" in verdict.notes


def test_the_pods_of_a_node_are_judged_beside_it(tmp_path: Path) -> None:
    def pod(name: str, rss: int, row: int) -> dict[str, object]:
        memory = {"time": DATES[row], "rssBytes": rss, "pageFaults": 100 * row}
        side = {"time": DATES[row], "rssBytes": 10**7, "pageFaults": row}
        return {
            "podRef": {"name": name, "uid": name * 8},
            "startTime": DATES[0],
            "containers": [{"name": "main", "memory": memory}, {"name": "side", "memory": side}],
        }

    lines = [
        {
            "node": {
                "nodeName": "n", "startTime": DATES[0],
                "cpu": {"time": DATES[row], "usageCoreNanoSeconds": 10**9 * row},
                "memory": {"time": DATES[row], "rssBytes": 10**9},
            },
            "pods": [pod(name, values[row], row) for name, values in TWO],
        }
        for row in ROWS
    ]  # fmt: skip

    verdict = judged(tmp_path, *lines)

    assert rates(verdict) == {
        'pods.containers.memory.rssBytes{podRef.name="b", name="main"}': "60.0"
    }
    assert "node.memory.rssBytes" in {row.name for row in verdict.rows}


@pytest.mark.parametrize(("grows", "kind"), [(False, "LEAK"), (True, "CLEAN")])
def test_a_statistic_has_the_name_of_its_metric(tmp_path: Path, grows: bool, kind: str) -> None:
    """Of memory that is left, a fall is the leak."""
    left = [(t, v if grows else 2**34 - v) for t, v in DATED]
    azure = {
        "value": [
            {
                "name": {"value": "Available Memory Bytes"}, "unit": "Bytes",
                "timeseries": [{"data": [{"timeStamp": t, "average": v} for t, v in left]}],
            }
        ]
    }  # fmt: skip
    points = [{"Timestamp": t, "Minimum": v, "Unit": "Bytes"} for t, v in left]

    for answer in (azure, {"Label": "FreeableMemory", "Datapoints": points}):
        assert judged(tmp_path, answer).kind.value == kind


def test_the_time_of_a_snapshot_may_be_called_now(tmp_path: Path) -> None:
    lines = [
        {"data": {"summary": [{"now": t, "host": "h", "workers": [
            {"pid": pid, "memoryInfo": {"rss": values[row], "vms": 2**34, "pfaults": 9 * row}}
            for pid, (_, values) in enumerate(TWO)
        ]}]}}
        for row, t in enumerate(SECONDS)
    ]  # fmt: skip

    assert rates(judged(tmp_path, *lines)) == {'memoryInfo.rss{pid="1"}': "60.0"}


def test_objects_inside_a_sample_have_its_time(tmp_path: Path) -> None:
    lines = [
        {
            "kind": "PodMetrics", "timestamp": DATES[row], "window": "15s",
            "containers": [
                {"name": name, "usage": {"cpu": "12345n", "memory": f"{values[row] // 1024}Ki"}}
                for name, values in TWO
            ],
        }
        for row in ROWS
    ]  # fmt: skip

    assert rates(judged(tmp_path, *lines)) == {'usage.memory{name="b"}': "60.0"}


def test_attributes_tell_whose_points_they_stand_beside(tmp_path: Path) -> None:
    azure = {
        "timeseries": [
            {
                "metadatavalues": [{"name": {"value": "host"}, "value": host}],
                "data": [
                    {"timeStamp": t, "rss_bytes": v} for t, v in zip(DATES, values, strict=True)
                ],
            }
            for host, values in TWO
        ]
    }
    points = [
        {
            "attributes": [{"key": "state", "value": {"stringValue": state}}],
            "timeUnixNano": f"{t:.0f}000000000",
            "asInt": f"{values[row]}",
        }
        for row, t in enumerate(SECONDS)
        for state, values in (("used", GROWS), ("cached", GROWS), ("free", FLAT))
    ]
    otel = {"metrics": [{"name": "usage", "unit": "By", "sum": {"dataPoints": points}}]}

    assert rates(judged(tmp_path, azure)) == {'rss_bytes{host="b"}': "60.0"}
    # "cached" is the page cache.
    assert rates(judged(tmp_path, otel)) == {'usage (bytes){state="used"}': "60.0"}


@pytest.mark.parametrize("own", [{"cpu": 12}, {"cpu": 12, "mem_used_mib": 900}])
@pytest.mark.parametrize("names_them", [True, False])
def test_the_devices_inside_a_sample_are_judged_beside_it(
    tmp_path: Path, own: dict[str, int], *, names_them: bool
) -> None:
    lines = [
        {
            "time": DATES[row],
            **own,
            "gpus": [
                {"memory_used_mib": values[row] / 2**20} | ({"index": index} if names_them else {})
                for index, (_, values) in enumerate(TWO)
            ],
        }
        for row in ROWS
    ]

    verdict = judged(tmp_path, *lines)

    assert rates(verdict) == {'gpus.memory_used_mib{index="1"}': "60.0"}
    assert not any("not read" in note for note in verdict.notes)


def test_a_chosen_time_column_may_be_in_a_nested_list(tmp_path: Path) -> None:
    document = {
        "runs": [{"id": "r", "points": [{"at": 60 * row, "rss_bytes": GROWS[row]} for row in ROWS]}]
    }

    verdict = judged(tmp_path, document, options=JudgeOptions(steady_at="10m", time_column="at:s"))

    assert rates(verdict) == {"rss_bytes": "60.0"}


def test_a_list_of_objects_describes_the_columns_beside_it(tmp_path: Path) -> None:
    """Values of some gigabytes might be taken for seconds since 1970."""
    both = [(name, [2 * value for value in values]) for name, values in TWO]
    milliseconds = [1000 * at for at in SECONDS]
    frames = [
        {
            "schema": {
                "fields": [
                    {"name": "Time", "type": "time"},
                    {"name": "Value", "labels": {"__name__": "rss", "pod": name},
                     "config": {"unit": "bytes"}},
                ]
            },
            "data": {"values": [milliseconds, values]},
        }
        for name, values in both
    ]  # fmt: skip
    grafana = {"results": {"A": {"status": 200, "frames": frames}}}
    attributes = {
        "series": [
            {"group_tags": [f"host:{name}", "spot"], "query_index": 0, "unit": [{"name": "byte"}]}
            for name, _ in both
        ],
        "times": milliseconds,
        "values": [values for _, values in both],
    }
    datadog = {"data": {"type": "timeseries_response", "attributes": attributes}}

    assert rates(judged(tmp_path, grafana)) == {'rss (bytes){pod="b"}': "120.0"}
    assert rates(judged(tmp_path, datadog)) == {'value (bytes){host="b"}': "120.0"}


def test_a_level_as_even_as_the_times_is_not_read_as_them(tmp_path: Path) -> None:
    # VictoriaMetrics exports the values before the times.
    exports = [
        {"metric": {"__name__": "rss_bytes", "pod": pod}, "values": values, "timestamps": SECONDS}
        for pod, values in (("flat", [1.5e9] * 120), ("grows", [1.5e9 + 2**20 * i for i in ROWS]))
    ]
    late = [[t + row % 3, str(1.5e9 + 2**20 * row)] for row, t in enumerate(SECONDS)]
    answer = {"data": {"result": [{"metric": {"__name__": "rss_bytes"}, "values": late}]}}

    assert rates(judged(tmp_path, *exports)) == {'rss_bytes{pod="grows"}': "60.0"}
    assert rates(judged(tmp_path, answer)) == {"rss_bytes": "60.0"}


def test_a_time_in_a_sample_may_be_of_something_else(tmp_path: Path) -> None:
    # The milliseconds of Ruby's collector; when Ollama unloads a model.
    ruby = [
        {
            "count": 9 + i,
            "time": 345 + 2 * i,
            "minor_gc_count": i,
            "heap_live_slots": 9000 + 100 * i,
        }
        for i in ROWS
    ]
    ollama = [{"models": [{"name": "m", "size": v, "expires_at": t}]} for t, v in DATED]
    untimed = JudgeOptions(steady_at="10m", interval_s=60.0)

    for samples in (ruby, ollama):
        assert judged(tmp_path, *samples, options=untimed).kind is VerdictKind.LEAK
    dated = [{**sample, "ts": t} for sample, t in zip(ruby, DATES, strict=True)]
    (row,) = judged(tmp_path, *dated).rows
    assert row.result.rate_per_hour is not None
    assert round(row.result.rate_per_hour.value) == 6000


def test_a_date_counts_before_a_time_from_a_start(tmp_path: Path) -> None:
    rows = [{"time": 345 + 2 * i, "rss_bytes": v, "ts": t} for i, (t, v) in enumerate(DATED)]

    assert rates(judged(tmp_path, *rows)) == {"rss_bytes": "60.0"}
    hours = [
        {"date": "2026-11-20", "elapsed_s": 60 * i, "rss_bytes": v} for i, v in enumerate(GROWS)
    ]
    assert rates(judged(tmp_path, *hours)) == {"rss_bytes": "60.0"}


@pytest.mark.parametrize(
    "layout", ["jq", "jq, lists", "curl", "date and curl", "date, curl, jq", "commas"]
)
def test_documents_follow_each_other_in_any_layout(tmp_path: Path, layout: str) -> None:
    dates = [f"{t:.0f}\n" if "date" in layout else "" for t in SECONDS]
    one = [{"rss": value} for value in GROWS]
    every = [[sample] for sample in one] if "lists" in layout else one
    end = {"jq": "\n", "commas": ",\n"}.get(layout.partition(",")[0], "")
    indent = 2 if "jq" in layout else None
    texts = (date + json.dumps(v, indent=indent) for date, v in zip(dates, every, strict=True))
    path = tmp_path / "series.json"
    path.write_text(end.join(texts))
    options = JudgeOptions(steady_at="10m", interval_s=None if "date" in layout else 60.0)

    assert rates(judge_file(str(path), options)) == {"rss": "60.0?"}
