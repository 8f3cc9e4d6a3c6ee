"""What watched processes keep: each leak is named with its event; healthy processes have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as replace_event

from benchmarks.watched_runs import LOADS, ROLES, Leak, Watched, watched_run
from hybridbench.analysis.drivers.at_idle import kept_at_idle
from hybridbench.analysis.drivers.heap_growth import growing_heaps
from hybridbench.analysis.drivers.kept import Work
from hybridbench.analysis.drivers.search import TIME
from hybridbench.analysis.drivers.under_traffic import kept_under_traffic
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.findings.held import EntriesKept
from hybridbench.analysis.findings.kept import kept_findings, without_parts
from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord, Series, observed_drivers
from hybridbench.foundation.units import format_bytes, format_count
from hybridbench.records.events import BYTES, NOT_A_NUMBER, PAGE, Census, Event, IdleLook, Phase
from hybridbench.records.finding import Finding, VerdictKind
from hybridbench.records.manifest import OBSERVED, Manifest, TargetFacts
from hybridbench.records.rates import full_rate_text
from tests.unit.analysis.records import with_events

REFUSALS = "requests_total.refused"


def found(run: Watched) -> list[Finding]:
    """Findings of what is kept, without the trends of memory."""
    return kept_findings(growing_heaps(Facts.of(watched_run(run))), ())


def leaks(run: Watched) -> list[Finding]:
    return [one for one in found(run) if one.verdict is VerdictKind.LEAK]


def of_kept(run: Watched) -> list[Finding]:
    """Findings about the planted container."""
    return [one for one in found(run) if "app.kept" in one.subject]


def one_process(seed: int, *leak: Leak, **values: object) -> Watched:
    return replace(Watched(seed, roles=ROLES[:1], leaks=leak, names=20), **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("load", LOADS)
def test_an_entry_for_each_request_is_found_within_three_minutes(load: str) -> None:
    run = one_process(11, Leak(), duration_s=180.0, census_s=15.0, load=load)

    (leak,) = leaks(run)

    assert isinstance(leak.basis, EntriesKept)
    assert leak.subject == 'entries of app.kept{role="api_server"}'
    assert leak.driver == "request_success_total"
    assert leak.rates[0].value == pytest.approx(1.0, abs=0.01)


def test_equal_rounds_between_idle_points_are_exact() -> None:
    run = one_process(12, Leak(), duration_s=240.0, census_s=60.0, idle_s=50.0)

    (leak,) = leaks(run)

    assert leak.title == "api_server keeps exactly 1.00 entries of app.kept per request"
    assert leak.driven is not None
    assert leak.driven.exact
    assert leak.basis.advice(leak).endswith(
        "--cache-budget app.kept=SIZE. If its entries expire, run for longer than they live."
    )
    assert leak.exact  # so missing samples between the points do not matter
    assert "app.Request objects: 1.00 per request" in leak.evidence


@pytest.mark.parametrize(("every", "verdict"), [(2, VerdictKind.LEAK), (10, None)])
def test_one_entry_in_so_many_requests_is_exact_beyond_the_windows_of_engines(
    every: int, verdict: VerdictKind | None
) -> None:
    record = watched_run(one_process(12, Leak(), duration_s=240.0, census_s=60.0, idle_s=30.0))

    def thinned(event: Event) -> Event:
        if not isinstance(event, Census):
            return event
        entries = {name: n // every for name, n in event.entries.items() if name == "app.kept"}
        return replace_event(event, entries={**event.entries, **entries}, types={})

    events = [thinned(event) for event in record.events]
    found = kept_findings(growing_heaps(Facts.of(replace(record, events=events))), ())

    (one,) = (f for f in found if "app.kept" in f.subject)
    assert one.title.startswith(f"api_server {'keeps' if verdict else 'may keep'} exactly")
    assert one.verdict is (verdict or VerdictKind.INCONCLUSIVE)
    assert f"exactly one of every {every} events added one" in " ".join(one.evidence)


@pytest.mark.parametrize("count", [3, 40])
def test_a_last_round_of_a_few_requests_takes_nothing_from_those_before(count: int) -> None:
    """At the end of a run, an idle point may come a few requests after the previous one."""
    run = one_process(12, Leak(), duration_s=240.0, census_s=60.0, idle_s=50.0)
    record = watched_run(run)
    look, census = record.all_events(IdleLook)[-1], record.all_events(Census)[-1]
    counters = {name: value + count for name, value in look.counters.items()}
    late = replace_event(look, t_s=look.t_s + 2.0, index=look.index + 1, counters=counters)
    entries = {"app.kept": int(look.counters["scraped.request_success_total"]) + count}
    scan = replace_event(census, t_s=look.t_s + 2.1, entries=entries)
    found = growing_heaps(Facts.of(with_events(record, late, scan)))

    (leak,) = (f for f in kept_findings(found, ()) if f.verdict is VerdictKind.LEAK)
    assert leak.title == "api_server keeps exactly 1.00 entries of app.kept per request"


def test_series_of_a_metrics_page_are_kept_by_their_label() -> None:
    record = watched_run(one_process(12, Leak(), duration_s=240.0, census_s=60.0, idle_s=50.0))
    events = [
        replace_event(event, role=PAGE) if isinstance(event, Census | IdleLook) else event
        for event in record.events
    ]
    found = kept_findings(growing_heaps(Facts.of(replace(record, events=events))), ())

    (leak,) = (f for f in found if f.verdict is VerdictKind.LEAK)
    assert leak.title == "/metrics keeps exactly 1.00 series of app.kept per request"
    assert leak.cause == ("a label of app.kept gets new values, and their series are never removed")


@pytest.mark.parametrize("load", LOADS)
def test_one_in_fifty_is_told_by_its_own_counter(load: str) -> None:
    (leak,) = leaks(one_process(13, Leak(event="refused"), load=load))

    assert leak.driver == REFUSALS
    assert leak.rates[0].lower <= 1.0 <= leak.rates[0].upper


def test_what_the_kept_objects_hold_is_no_leak_of_its_own() -> None:
    """Each request has a list of sixteen tokens, so their entries grow by sixteen per request."""
    record = watched_run(one_process(12, Leak(), duration_s=240.0, census_s=60.0, idle_s=50.0))
    path = "app.Request.tokens"

    def with_lists(event: Event) -> Event:
        if not isinstance(event, Census) or "app.kept" not in event.entries:
            return event
        kept = event.entries["app.kept"]
        return replace_event(
            event,
            entries={**event.entries, path: 16 * kept},
            containers={**event.containers, path: kept},
        )

    growing = growing_heaps(Facts.of(replace(record, events=tuple(map(with_lists, record.events)))))
    (leak,) = (f for f in kept_findings(growing, ()) if f.verdict is VerdictKind.LEAK)

    assert leak.subject == 'entries of app.kept{role="api_server"}'
    assert "entries of app.Request.tokens: 16.0 per request" in leak.evidence


@pytest.mark.parametrize("seed", [31, 32, 38])
def test_one_in_twenty_without_a_counter_of_its_own_is_found(seed: int) -> None:
    (leak,) = leaks(one_process(seed, Leak(share=0.05), duration_s=900.0))

    assert leak.rates[0].value == pytest.approx(0.05, rel=0.15)


def test_what_lives_for_four_minutes_is_no_leak_of_a_process_that_is_younger() -> None:
    store = Leak(event="refused", life_s=240.0)
    run = one_process(16, store, idle_s=60.0, restarts_s=(290.0,), load="on-off")

    assert leaks(run) == []
    (leak,) = leaks(replace(run, leaks=(Leak(event="refused"),)))
    assert leak.exact


def at_idle_points(
    name: str, t_s: Sequence[float], held: Sequence[int], counters: Mapping[str, Sequence[float]]
) -> list[Finding]:
    """Findings for a container with ``held`` entries at idle points, and for counters of work."""
    return kept_findings(growing_heaps(Facts.of(idle_record(name, t_s, held, counters))), ())


def idle_record(
    name: str, t_s: Sequence[float], held: Sequence[int], counters: Mapping[str, Sequence[float]]
) -> RunRecord:
    """A run recorded only at idle points."""
    at = np.asarray(t_s, np.float64)
    series = {
        key: Series(key, at, np.asarray(value, np.float64)) for key, value in counters.items()
    }
    events: list[Event] = []
    for index, (at_s, count) in enumerate(zip(t_s, held, strict=True)):
        seen = {key: float(one.value[index]) for key, one in series.items()}
        entries = {name: int(count)}
        events += [
            Phase(name="idle", phase="idle", t_s=at_s - 2.0),
            IdleLook(role="app", pid=1, index=index, idle=True, counters=seen, t_s=at_s),
            Census(role="app", pid=1, index=index, whole=True, entries=entries, t_s=at_s),
            Phase(name="resume", phase="steady", t_s=at_s + 2.0),
        ]
    manifest = Manifest(planned_duration_s=t_s[-1], target=TargetFacts(kind=OBSERVED))
    return RunRecord(manifest, series, events, drivers=observed_drivers(series))


def kept_each(
    entries: Mapping[str, int],
    types: Mapping[str, int],
    containers: Sequence[str] = (),
    buffers: Sequence[str] = (),
) -> list[Finding]:
    """Findings for a process that keeps this many more of each name per request.

    Each request also adds a container for each name in ``containers``; ``buffers`` hold bytes.
    """
    counters = {"scraped.answered_requests_total": [400.0 * n for n in range(6)]}
    record = idle_record("app.rest", [60.0 * n for n in range(6)], [1] * 6, counters)

    def grown(each: Mapping[str, int], index: int) -> dict[str, int]:
        return {name: 5 + 400 * index * more for name, more in each.items()}

    events = [
        replace_event(
            event,
            entries=grown(entries, event.index),
            types=grown(types, event.index),
            containers=grown(dict.fromkeys(containers, 1), event.index),
            holds=dict.fromkeys(buffers, BYTES),
        )
        if isinstance(event, Census)
        else replace_event(event, unreachable=0)
        if isinstance(event, IdleLook)
        else event
        for event in record.events
    ]
    return kept_findings(growing_heaps(Facts.of(replace(record, events=events))), ())


def test_weak_containers_keep_nothing_themselves() -> None:
    """``logging`` keeps every lock in a weak set as long as a list holds the lock's handler."""
    weak = {"_weakrefset.WeakSet.data": 1, "weakref.WeakValueDictionary.data": 1}

    (held,) = kept_each({**weak, "logging.Logger.handlers": 1}, {"app.Sink": 1})
    (unheld,) = kept_each(weak, {"app.Sink": 1})

    assert held.title.startswith("app keeps exactly 1.00 entries of logging.Logger.handlers per ")
    assert unheld.title.startswith("app keeps exactly 1.00 app.Sink objects per ")


def test_objects_of_a_class_say_more_than_the_containers_that_each_brings() -> None:
    body = "app.Event.body"

    (leak,) = kept_each({body: 8000}, {"app.Event": 1, "builtins.bytearray": 1}, [body], [body])
    (unnamed,) = kept_each({body: 8000}, {"builtins.function": 1, "_thread.lock": 1}, [body])

    assert (leak.kind, leak.title.split(" per ")[0]) == (
        "objects-kept",
        "app keeps exactly 1.00 app.Event objects",
    )
    assert "app.Event.body: 7.81 KiB per answered request" in leak.evidence
    assert unnamed.title.startswith("app keeps exactly 8,000 entries of app.Event.body per ")
    assert unnamed.cause.startswith("more and more containers of this name stay alive")


def test_what_a_buffer_keeps_is_given_in_bytes() -> None:
    (leak,) = kept_each({"app.log": 8000}, {}, buffers=["app.log"])

    assert leak.title == "app keeps exactly 7.81 KiB of app.log per answered request"
    assert leak.cause == "bytes are added to app.log and never removed"
    assert leak.evidence[0].startswith("held at idle, after a collection: 3.05 MiB, 6.10 MiB, ")
    assert (leak.subject, leak.rates[0].unit) == ('bytes of app.log{role="app"}', "B")


def found_of_clients(connected: Sequence[int], entries: Sequence[int]) -> list[Finding]:
    """Findings for a server whose ``connected`` clients have lists with ``entries`` in all."""
    at_points = range(len(connected))
    counters = {"scraped.answered_requests_total": [400.0 * n for n in at_points]}
    record = idle_record("app.rest", [60.0 * n for n in at_points], [1] * len(connected), counters)

    def of_clients(event: Event) -> Event:
        if isinstance(event, IdleLook):
            return replace_event(event, unreachable=0)
        if not isinstance(event, Census):
            return event
        clients = connected[event.index]
        return replace_event(
            event,
            entries={"app.Client.recent": entries[event.index]},
            containers={"app.Client.recent": clients},
            types={"app.Client": clients},
        )

    events = tuple(map(of_clients, record.events))
    return kept_findings(growing_heaps(Facts.of(replace(record, events=events))), ())


@pytest.mark.parametrize("a_minute", [1, 2])
def test_a_few_more_clients_are_no_leak_however_much_each_of_them_holds(a_minute: int) -> None:
    """A ring of a thousand places for each of nine new clients is no leak of 9,000 entries."""
    few = [4 + a_minute * n for n in range(10)]
    many = [4 + 200 * n for n in range(10)]

    assert found_of_clients(few, [1000 * clients for clients in few]) == []
    (leak,) = found_of_clients(many, [1000 * clients for clients in many])
    assert leak.title == "app keeps exactly 0.500 app.Client objects per answered request"


@pytest.mark.parametrize("clients", [[4, 4, 5, 5, 6, 6, 7, 7, 7, 7], [1, *[9] * 9]])
def test_lists_that_become_longer_are_a_leak_also_while_a_few_more_come(clients: list[int]) -> None:
    """Most may come with the first requests, when they are short."""
    (leak,) = found_of_clients(clients, [1600 * n for n in range(10)])

    assert leak.title == "app keeps exactly 4.00 entries of app.Client.recent per answered request"


def test_what_was_counted_at_idle_points_no_fit_sets_aside() -> None:
    """The share of refusals falls, so growth per request seems to slow down."""
    refused = [0, 12, 21, 28, 40, 53, 63, 74, 88, 98, 105, 110, 121, 130, 143, 150, 155]
    rounds = range(len(refused))
    counters: dict[str, Sequence[float]] = {
        "scraped.answered_requests_total": [500.0 * n for n in rounds],
        "scraped.refused_requests_total": refused,
    }

    (leak,) = at_idle_points("app.by_id", [30.0 * n for n in rounds], refused, counters)
    assert leak.verdict is VerdictKind.LEAK
    assert leak.title == "app keeps exactly 1.00 entries of app.by_id per refused request"


def test_one_entry_per_event_needs_no_seven_minutes_in_a_program_that_is_never_idle() -> None:
    """It works at less than 5 % of a processor, which counts as idle: some entries come between
    the reading of the counter and the scan."""
    rounds = range(20)
    refused = [0, *np.cumsum([47, 31, 52, 40, 36, 55, 43, 38, 49, 33] * 2)[:-1].tolist()]
    late = [0, 1, 0, 0, 2, 1, 0, 1, 0, 2, 1, 0, 1, 2, 0, 0, 1, 0, 2, 1]
    held = [count + more for count, more in zip(refused, late, strict=True)]
    counters: dict[str, Sequence[float]] = {
        "scraped.answered_requests_total": [900.0 * n for n in rounds],
        "scraped.refused_requests_total": refused,
    }

    (leak,) = at_idle_points("app.failures", [20.0 * n for n in rounds], held, counters)

    assert leak.verdict is VerdictKind.LEAK
    assert leak.driver == "refused_requests_total"
    assert not leak.exact
    assert leak.rates[0].lower < 1.0 < leak.rates[0].upper


@pytest.mark.parametrize("before", [0, 180])
def test_a_leak_that_begins_in_the_middle_of_the_run_is_told_by_its_container(before: int) -> None:
    rounds = range(10)
    counters = {"scraped.answered_requests_total": [400.0 * n for n in rounds]}
    held = [0, 0, 0, 0, *(before + 400 * n for n in range(6))]

    (leak,) = at_idle_points("app.log", [30.0 * n for n in rounds], held, counters)

    assert leak.verdict is VerdictKind.LEAK
    assert leak.title == "app keeps exactly 1.00 entries of app.log per answered request"


@pytest.mark.parametrize(("rounds", "verdicts"), [(3, []), (4, ["LEAK"])])
def test_two_rounds_after_one_that_disagrees_may_agree_by_accident(
    rounds: int, verdicts: list[str]
) -> None:
    """A table of a healthy process gained 48, 38 and 34 in rounds with 20, 19 and 17 refusals."""
    held = [81, 129, 167, 201, 231][: rounds + 1]
    counters = {
        "scraped.answered_requests_total": [1000.0 * (n + 1) for n in range(rounds + 1)],
        "scraped.refused_requests_total": [22.0, 42, 61, 78, 93][: rounds + 1],
    }

    found = at_idle_points(
        "app.recent", [60.0 * (n + 1) for n in range(rounds + 1)], held, counters
    )

    assert [one.verdict for one in found] == verdicts


def test_seconds_that_a_server_sums_up_make_no_rare_event_common() -> None:
    """``mamba_state_idx`` as recorded from vLLM 0.32.0 with one request at a time.

    Per abort the growth would seem to slow down, because the share of aborts rose by chance.
    """
    held = [1, 662, 919, 1573, 1892, 2261, 2718]
    counters: dict[str, Sequence[float]] = {
        "events.finishes": [0, 592, 818, 1399, 1670, 1995, 2396],
        "events.abort_decode": [0, 64, 98, 165, 211, 254, 304],
        "scraped.vllm:request_queue_time_seconds_sum": [4e-5 * n for n in held],
        "scraped.vllm:inter_token_latency_seconds_sum": [4e-5 * n for n in held],
    }
    t_s = [71.1, 191.5, 251.3, 372.3, 431.4, 491.2, 551.4]

    (leak,) = at_idle_points("runner.by_id", t_s, held, counters)
    assert leak.verdict is VerdictKind.LEAK
    assert leak.title == "app keeps 1.13 (1.11 to 1.15) entries of runner.by_id per request"


def test_kinds_of_requests_are_no_common_work_of_which_a_cache_gets_ever_less() -> None:
    """A server's table of refused requests, as recorded under the profile ``refusals``.

    By chance more requests of some kinds came in the second half.
    """
    gains = {
        "events.requests_submitted": [533, 668, 595, 621, 619, 612, 634, 604],
        "events.requests_rejected": [99, 98, 95, 102, 96, 110, 87, 83],
        "events.requests_rejected.400": [76, 84, 77, 74, 79, 89, 64, 65],
        "events.requests_with.bad_json": [10, 16, 9, 11, 20, 11, 11, 19],
        "events.requests_with.content_type": [12, 14, 10, 12, 11, 14, 14, 18],
    }
    counters = {name: [1, *np.cumsum(gained) + 1] for name, gained in gains.items()}
    held = [1, *np.cumsum([74, 79, 72, 73, 72, 83, 60, 62]) + 1]

    (leak,) = at_idle_points("server.errors", [60.0 * n for n in range(1, 10)], held, counters)

    assert leak.verdict is VerdictKind.LEAK
    assert leak.driver == "requests_rejected.400"


def test_the_sum_of_a_histogram_of_requests_is_no_count_of_requests() -> None:
    tokens = [20.0 * n for n in (1, 120, 250, 360, 490, 610)]
    counters = {
        "events.output_tokens": tokens,
        "scraped.vllm:request_generation_tokens_sum": tokens,
        "scraped.vllm:request_queue_time_seconds_sum": [n / 100 for n in tokens],
    }

    (leak,) = at_idle_points(
        "runner.by_id", [60.0 * n for n in range(1, 7)], [round(n / 16) for n in tokens], counters
    )

    assert "per output token" in leak.title


def test_a_pool_that_is_full_after_the_last_idle_point_is_no_leak() -> None:
    pool = Leak(most=4300.0)
    run = one_process(17, pool, idle_s=60.0, duration_s=290.0, census_s=15.0)

    (one,) = of_kept(run)
    assert one.verdict is VerdictKind.INCONCLUSIVE
    assert one.cause == "after the last idle point it did not grow with its event"
    (leak,) = leaks(replace(run, leaks=(Leak(),)))
    assert leak.exact


def test_vllms_window_of_the_last_thousand_requests_is_no_leak() -> None:
    """``CachingMetrics.query_queue`` gains an entry per request until it has a thousand."""
    run = one_process(18, Leak(most=1000.0), idle_s=60.0, requests_per_s=2.5)

    (one,) = of_kept(replace(run, duration_s=350.0))
    assert one.verdict is VerdictKind.INCONCLUSIVE
    assert "it may be a window of recent events" in one.cause
    assert of_kept(replace(run, duration_s=900.0)) == []


@pytest.mark.parametrize(
    ("requests_per_s", "duration_s", "cpu_power", "doubt"),
    [
        (20.0, 600.0, None, "clock"),
        (20.0, 600.0, 1.5, "clock"),
        (20.0, 600.0, 1.0, ""),
        (20.0, 1200.0, None, ""),
        (0.8, 1200.0, None, "window"),
    ],
)
def test_without_a_counter_of_work_growth_must_last_unless_processor_time_is_constant(
    requests_per_s: float, duration_s: float, cpu_power: float | None, doubt: str
) -> None:
    """A program without a metrics page has none: under rising traffic, its caches grow steadily."""
    run = one_process(18, Leak(objects=""), requests_per_s=requests_per_s, duration_s=duration_s)
    record = watched_run(run)
    series = {name: one for name, one in record.series.items() if "scraped" not in name}
    if cpu_power is not None:
        t_s = np.arange(0.0, duration_s, 2.0)
        name = 'worker_cpu_s{role="api_server"}'
        series[name] = Series(name, t_s, 0.001 * t_s**cpu_power)
    alone = replace(record, series=series, drivers=observed_drivers(series))

    found = kept_findings(growing_heaps(Facts.of(alone)), ())

    (one,) = (one for one in found if "app.kept" in one.subject)
    assert isinstance(one.basis, EntriesKept)
    assert one.basis.doubt == doubt
    assert one.verdict is (VerdictKind.INCONCLUSIVE if doubt else VerdictKind.LEAK)


def test_a_container_in_which_some_requests_leave_an_entry_is_named() -> None:
    """Like vLLM's ``mamba_state_idx``, which keeps requests that end while no other is running."""
    held = np.array([1.0, 160, 231, 290, 377, 426, 536, 643])
    requests = np.array([1.0, 667, 1133, 1603, 2000, 2188, 2672, 3173])
    t_s = 60.0 * np.arange(held.size)
    name = "request_success_total"
    work = Work((name, TIME), np.column_stack([requests, t_s]), {name: 0}, frozenset({name}))

    kept = kept_at_idle(held, work, 2.0, 5.0, named=True)

    assert kept is not None
    assert (kept.driver.counter, kept.rounds, kept.alike) == (name, 7, False)
    assert kept.driver.lower < 642 / 3172 < kept.driver.upper
    assert not kept.steady  # with more traffic, a store with time-limited entries grows too
    assert not kept.slows
    assert kept_at_idle(held, work, 2.0, 5.0) is None


def test_aborts_that_explain_uneven_rounds_a_little_better_are_no_driver() -> None:
    """One of four workers leaks, and gets a share of the requests that varies."""
    held = np.array([0.0, 260, 640, 900, 1260, 1500, 1890])
    finished = np.array([0.0, 1000, 2050, 3020, 4040, 5000, 6050])
    aborted = np.array([0.0, 50, 106, 152, 210, 260, 318])
    names = ("finished", "aborted")
    work = Work(
        names,
        np.column_stack([finished, aborted]),
        dict(zip(names, (0, 4), strict=True)),
        frozenset(names[:1]),
    )

    kept = kept_at_idle(held, work, 2.0, 5.0, named=True)

    assert kept is not None
    assert (kept.driver.counter, kept.alike, kept.driver.rivals) == (
        "finished",
        False,
        ("aborted",),
    )


def test_a_leak_of_the_process_that_was_started_anew_is_found() -> None:
    role = ROLES[-1]
    run = Watched(
        15, roles=(role,), names=20, restarts_s=(200.0,), leaks=(Leak(role=role),), census_s=20.0
    )

    (leak,) = leaks(run)

    assert leak.subject == f'entries of app.kept{{role="{role}"}}'


def test_two_containers_of_one_process_are_two_leaks() -> None:
    run = one_process(16, Leak(path="app.messages", objects="app.Message"), Leak())

    subjects = [one.subject.partition("{")[0] for one in leaks(run)]

    assert subjects == ["entries of app.kept", "entries of app.messages"]


@pytest.mark.parametrize(("idle_s", "verdict"), [(60.0, "LEAK"), (0.0, "INCONCLUSIVE")])
def test_objects_that_no_container_holds_may_be_garbage_without_idle_points(
    idle_s: float, verdict: str
) -> None:
    run = replace(one_process(17, Leak(path=""), idle_s=idle_s), names=0)

    (kept,) = found(run)

    assert (kept.kind, kept.verdict) == ("objects-kept", verdict)


@pytest.mark.parametrize(
    ("leak", "kind"),
    [
        (Leak(each=0, blocks=14.0, value_bytes=0.0), "blocks-kept"),
        (Leak(each=0, native_bytes=2048.0), "bytes-kept"),
    ],
)
def test_growth_without_a_name_is_found_at_idle_points(leak: Leak, kind: str) -> None:
    (kept,) = found(replace(one_process(18, leak, idle_s=60.0), names=0))

    assert (kept.kind, kept.verdict) == (kind, VerdictKind.LEAK)


@pytest.mark.parametrize(
    "leak",
    [
        Leak(path=""),
        Leak(each=0, blocks=14.0, value_bytes=0.0),
        Leak(each=0, native_bytes=16384.0),
    ],
)
def test_what_was_never_collected_at_idle_points_may_be_garbage(leak: Leak) -> None:
    """The collector is disabled, or the heap is too large for a collection."""
    record = watched_run(replace(one_process(18, leak, idle_s=60.0), names=0))
    events = [
        replace_event(event, unreachable=None) if isinstance(event, IdleLook) else event
        for event in record.events
    ]

    (kept,) = kept_findings(growing_heaps(Facts.of(replace(record, events=events))), ())

    assert kept.verdict is VerdictKind.INCONCLUSIVE
    assert "garbage collector is disabled, or its heap is so large" in kept.cause
    assert "--metrics" not in kept.cause
    assert not any("after a collection" in line for line in kept.evidence)


@pytest.mark.parametrize(
    "changes",
    [
        {"requests_per_s": 1.5, "idle_s": 60.0},  # at most a window of the last thousand requests
        {"requests_per_s": 6.0, "idle_s": 190.0},  # two rounds
    ],
)
def test_bytes_without_a_name_need_more_than_a_window_and_three_rounds(
    changes: dict[str, float],
) -> None:
    leak = Leak(each=0, native_bytes=262144.0)
    run = replace(one_process(18, leak, duration_s=620.0, **changes), names=0)

    (kept,) = found(run)

    assert (kept.kind, kept.verdict) == ("bytes-kept", VerdictKind.INCONCLUSIVE)


def test_counters_of_bytes_are_neither_named_for_events_nor_hide_the_bytes_of_malloc() -> None:
    jobs = [400.0 * n for n in range(6)]
    counters = {
        "scraped.shop_answer_bytes_total": [37.0 * count for count in jobs],
        "scraped.shop_jobs_total": jobs,
    }
    t_s = [0.0, 50.0, 130.0, 180.0, 250.0, 300.0]
    record = idle_record("app.rest", t_s, [1] * 6, counters)
    events = [
        replace_event(event, malloc_bytes=10**8 + 1_600_000 * event.index, unreachable=0)
        if isinstance(event, IdleLook)
        else event
        for event in record.events
    ]

    (leak,) = kept_findings(growing_heaps(Facts.of(replace(record, events=events))), ())

    assert (leak.kind, leak.driver) == ("bytes-kept", "shop_jobs_total")
    assert leak.rates[0].value == pytest.approx(4000.0)


HANDLES = {
    "open_fds": "app keeps exactly 1.00 open files per answered request",
    "threads": "app keeps exactly 1.00 threads per answered request",
    "children": "app keeps exactly 1.00 child processes per answered request",
    "zombies": "app keeps exactly 1.00 zombies per answered request",
}


def kept_open(metric: str, container: str = "") -> list[Finding]:
    """Findings for a process that keeps one more of ``metric`` per request."""
    held = [10 + 400 * n for n in range(6)]
    counters = {"scraped.answered_requests_total": [400.0 * n for n in range(6)]}
    record = idle_record(container, [60.0 * n for n in range(6)], held, counters)
    events = [
        replace_event(event, handles={metric: float(held[event.index])})
        if isinstance(event, IdleLook)
        else event
        for event in record.events
        if container or not isinstance(event, Census)
    ]
    return kept_findings(growing_heaps(Facts.of(replace(record, events=events))), ())


@pytest.mark.parametrize("metric", HANDLES)
def test_what_a_process_never_closes_is_counted_at_idle_points_without_a_probe(metric: str) -> None:
    (leak,) = kept_open(metric)

    assert (leak.kind, leak.verdict, leak.title) == ("handles-kept", "LEAK", HANDLES[metric])
    assert leak.exact
    assert leak.subject == f'{metric}{{role="app"}}'
    assert leak.evidence[0].startswith("held at idle: 410, 810, ")


def test_open_files_are_evidence_for_the_container_that_keeps_them() -> None:
    (leak,) = kept_open("open_fds", "app.sockets")

    assert leak.title == "app keeps exactly 1.00 entries of app.sockets per answered request"
    assert "open files: 1.00 per answered request" in leak.evidence


def test_the_trend_of_what_is_known_to_be_kept_open_is_not_told_again() -> None:
    kept = kept_open("open_fds")
    trends = [replace(kept[0], subject=f'{name}{{role="app"}}') for name in HANDLES]

    left = [finding.subject for finding in without_parts(trends, kept)]

    assert left == ['threads{role="app"}', 'children{role="app"}', 'zombies{role="app"}']


def test_fewer_requests_are_no_cache_that_fills_more_slowly() -> None:
    """One request in ten keeps an entry; the second half has a third fewer requests."""
    t_s = np.arange(22) * 14.0
    requests = np.cumsum(np.linspace(240.0, 130.0, 22))
    columns = np.column_stack([requests, t_s])
    work = Work(("requests", TIME), columns, {"requests": 0}, frozenset({"requests"}))
    first = t_s == 0.0

    no_load = np.zeros((22, 0))
    (kept,) = kept_under_traffic(np.floor(0.1 * requests)[None, :], first, work, no_load)

    assert kept is not None
    assert kept.driver.counter == "requests"
    assert (kept.slows, kept.steady) == (False, True)


def test_a_finish_reason_that_becomes_more_frequent_does_not_make_a_leak_look_like_a_cache() -> (
    None
):
    """Blocks grow by a constant number per request, but by ever fewer per stop token."""
    leak = Leak(each=0, blocks=57.0, value_bytes=0.0)
    record = watched_run(replace(one_process(20, leak, idle_s=60.0), names=0))
    name = "scraped.request_success_total"
    requests = record.series[name]
    most = float(requests.value[-1])

    def stopped(count: float) -> float:
        return float(np.floor(0.1 * count * count / most))

    part = Series(f"{name}.stop", requests.t_s, np.array([*map(stopped, requests.value)]))
    series = {**record.series, part.name: part}

    def with_part(event: Event) -> Event:
        if not isinstance(event, IdleLook):
            return event
        counters = {**event.counters, part.name: stopped(event.counters[name])}
        return replace_event(event, counters=counters)

    events = tuple(map(with_part, record.events))
    record = replace(record, series=series, events=events, drivers=observed_drivers(series))
    (kept,) = kept_findings(growing_heaps(Facts.of(record)), ())

    assert (kept.kind, kept.verdict) == ("blocks-kept", VerdictKind.LEAK)
    assert kept.driver == "request_success_total"


def test_a_container_with_a_bound_is_no_leak_before_it_is_full() -> None:
    record = watched_run(one_process(19, Leak(), names=0))
    bounded = [
        replace_bounds(event) if isinstance(event, Census) else event for event in record.events
    ]

    growing = growing_heaps(Facts.of(replace(record, events=bounded)))

    (cache,) = [one for one in growing if one.name == "app.kept"]
    assert cache.kind == "fills"
    assert cache.full_in_s == pytest.approx((10**6 - cache.last) / 19.0, rel=0.1)


@pytest.mark.parametrize("more", [0, 5000])
def test_what_a_cache_holds_is_no_leak_even_if_the_last_scan_found_it_full(more: int) -> None:
    leak = Leak(objects="", value_bytes=2_000.0)
    record = watched_run(one_process(19, leak, names=0, idle_s=60.0))
    last = [event for event in record.events if isinstance(event, Census)][-1]
    bounds = {"app.kept": last.entries["app.kept"] + more}
    events = [
        replace_event(event, bounds=bounds) if event is last else event for event in record.events
    ]

    growing = growing_heaps(Facts.of(replace(record, events=events)))

    kinds = {one.name: one.kind.value for one in growing}
    assert kinds["app.kept"] == ("fills" if more else "full")
    assert kinds["python_blocks"] == "kept"
    assert kept_findings(growing, ()) == []


_LESS_THAN_HALF_FULL = (
    "it may be a cache that is less than half full: it, its owner or the code that shortens it has "
    "a limit of 1,048,576, which may apply to it"
)
_EXPIRES = (
    "code or timers remove old entries, by age or by a limit other than their number: only 45m "
    "would rule out that this has yet to begin"
)


@pytest.mark.parametrize(
    ("limit", "kind", "causes"),
    [
        (2**20, "open", [_LESS_THAN_HALF_FULL]),
        (20_000, "fills", []),
        (NOT_A_NUMBER, "open", [_EXPIRES]),
    ],
)
def test_a_number_of_the_owner_is_the_limit_of_a_cache_that_comes_near_to_it(
    limit: int, kind: str, causes: list[str]
) -> None:
    """``max_size`` of a server of WebSockets is that of a message, 1 MiB.

    Each entry is a container of its own, with eight entries.
    """
    record = watched_run(one_process(19, Leak(), names=0))

    def of_hub(event: Event) -> Event:
        if not isinstance(event, Census) or "app.kept" not in event.entries:
            return event
        kept = event.entries["app.kept"]
        return replace_event(
            event,
            entries={**event.entries, "app.kept[]": 8 * kept},
            containers={**event.containers, "app.kept[]": kept},
            limits={"app.kept": limit} if event.index == 0 else {},
        )

    growing = growing_heaps(Facts.of(replace(record, events=tuple(map(of_hub, record.events)))))
    findings = kept_findings(growing, ())

    (cache,) = [one for one in growing if one.name == "app.kept"]
    assert cache.kind == kind
    if limit < NOT_A_NUMBER:
        assert cache.full_in_s == pytest.approx((limit - cache.last) / 19.0, rel=0.1)
    assert [one.cause for one in findings] == causes
    for one in findings:
        assert one.verdict is VerdictKind.INCONCLUSIVE
        assert one.subject.startswith("entries of app.kept{")


@pytest.mark.parametrize(("share", "doubt"), [(1.0, "expiry"), (0.5, "")])
def test_a_container_with_a_pending_timer_for_each_entry_may_be_emptied_by_them(
    share: float, doubt: str
) -> None:
    timers = Leak(path="", objects="asyncio.events.TimerHandle", share=share)

    (one,) = of_kept(one_process(19, Leak(), timers, names=0))

    assert isinstance(one.basis, EntriesKept)
    assert one.basis.doubt == doubt
    assert one.verdict is (VerdictKind.INCONCLUSIVE if doubt else VerdictKind.LEAK)


def test_a_container_that_outgrew_the_limit_of_its_owner_is_no_full_cache() -> None:
    """``Hub.max_size`` is 100, but not for the table of sessions: from the second scan on, it has
    no bound."""
    record = watched_run(one_process(19, Leak(), names=0))
    events = [
        replace_event(event, bounds={"app.kept": 100 * (event.index < 1)})
        if isinstance(event, Census) and event.index < 2
        else event
        for event in record.events
    ]

    growing = growing_heaps(Facts.of(replace(record, events=events)))

    (kept,) = [one for one in growing if one.name == "app.kept"]
    assert (kept.kind, kept.bound) == ("kept", None)


def replace_bounds(event: Census) -> Census:
    return Census(
        role=event.role,
        pid=event.pid,
        index=event.index,
        entries=event.entries,
        bounds={"app.kept": 10**6},
        t_s=event.t_s,
    )


def test_a_container_that_fills_ever_more_slowly_leaves_the_run_undecided() -> None:
    (cache,) = found(replace(one_process(20, Leak(power=0.6, each=20.0, objects="")), names=0))

    assert (cache.kind, cache.verdict) == ("cache-fills", VerdictKind.INCONCLUSIVE)
    assert full_rate_text(cache.rates[0]).endswith(" (no 95% interval)")


def test_what_is_gone_at_idle_is_no_leak() -> None:
    record = watched_run(one_process(21, Leak(objects=""), names=0, idle_s=60.0))
    looks = [event.t_s for event in record.events if isinstance(event, IdleLook)]
    emptied = {"app.kept": 4}
    events = [
        Census(role=event.role, pid=event.pid, entries=emptied, t_s=event.t_s)
        if isinstance(event, Census) and min(abs(event.t_s - at) for at in looks) < 2.0
        else event
        for event in record.events
    ]

    growing = growing_heaps(Facts.of(replace(record, events=events)))

    assert [one for one in growing if one.name == "app.kept"] == []


@pytest.mark.parametrize("seed", range(3))
def test_healthy_processes_keep_nothing(seed: int) -> None:
    idle_s = 60.0 * (seed % 2)

    assert (
        leaks(Watched(7_000 + seed, load=LOADS[seed % len(LOADS)], idle_s=idle_s, names=40)) == []
    )


def test_memory_of_a_process_is_evidence_where_it_is_known_what_is_kept() -> None:
    verdict = judge(watched_run(one_process(22, Leak(), idle_s=60.0)), guarded=False)

    assert verdict.kind is VerdictKind.LEAK
    assert [one.kind for one in verdict.findings if one.verdict is VerdictKind.LEAK] == [
        "entries-kept"
    ]
    assert any(line.startswith("private memory: ") for line in verdict.findings[0].evidence)


def test_what_grows_beside_a_container_is_told_per_hour_if_only_the_clock_explains_it() -> None:
    """A program without a metrics page, which keeps one object of 3 KB for each entry."""
    record = watched_run(one_process(22, Leak(), duration_s=900.0))
    unseen = {name: one for name, one in record.series.items() if "scraped." not in name}
    record = replace(record, series=unseen, drivers=observed_drivers(unseen))
    verdict = judge(record, guarded=False)

    (leak,) = (one for one in verdict.findings if one.kind == "entries-kept")
    (memory,) = (one for one in verdict.metrics if one.metric.startswith("rss_anon_swap"))
    assert memory.rate_per_hour is not None
    assert f"private memory: {format_bytes(memory.rate_per_hour.value)}/h" in leak.evidence
    (objects,) = (one for one in leak.evidence if one.startswith("app.Request objects: "))
    assert objects == f"app.Request objects: {format_count(leak.rates[0].value)}/h"


def test_fewer_than_eight_censuses_tell_nothing_under_traffic() -> None:
    run = one_process(23, Leak(), duration_s=180.0, census_s=30.0)

    assert found(run) == []


def test_rounds_that_disagree_are_no_leak() -> None:
    record = watched_run(replace(one_process(24, Leak(objects=""), idle_s=60.0), names=0))
    rng = np.random.default_rng(0)
    events = [
        Census(
            role=event.role,
            pid=event.pid,
            index=event.index,
            entries={"app.kept": int(rng.integers(100, 9_000))},
            t_s=event.t_s,
        )
        if isinstance(event, Census)
        else event
        for event in record.events
    ]

    growing = growing_heaps(Facts.of(replace(record, events=events)))

    assert [one for one in growing if one.name == "app.kept"] == []
