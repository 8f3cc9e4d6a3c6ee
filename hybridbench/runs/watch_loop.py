"""The loop of a watched target: metrics pages, processes and their probes; idle points.

The load is external, or comes from our load client.  A load that the run started can be paused:
then the target becomes idle, and its probes can report what it still holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hybridbench.analysis.facts.counters import bare
from hybridbench.analysis.findings.words import times
from hybridbench.analysis.record import observed_drivers
from hybridbench.foundation.latency import LatencyCounts
from hybridbench.foundation.metrics import HANDLES, MEMORY
from hybridbench.foundation.units import format_duration
from hybridbench.records.events import (
    PAGE,
    AnswersRepeated,
    Census,
    Checkpoint,
    EngineViolation,
    IdleLook,
)
from hybridbench.records.load import CrashSearch
from hybridbench.records.processes import ProcessSample
from hybridbench.runs.http_load import HttpLoad
from hybridbench.runs.idle_sign import SIGN_EVERY_S, IdleSign
from hybridbench.runs.load_command import LoadCommand
from hybridbench.runs.looks import IdlePoint, Looks, Round
from hybridbench.runs.loop import RunLoop, WorkerLostError
from hybridbench.sampling.scrape import Scraper
from hybridbench.sampling.scraped_page import Scrape
from hybridbench.targets.readiness import Asked, post
from hybridbench.targets.target import Capability, Control

# The target counts as idle after this long without activity.
_IDLE_FOR_S: Final = 2.0
_BREATH_S: Final = 0.5
# A server whose processes are inactive for this long will not finish any request.
_LEFT_FOR_S: Final = 5.0
_LOOK_PATIENCE_S: Final = 30.0
# Patience as a multiple of ``answers_s``: answers that differ are requested once more.
_REPEAT_PATIENCE: Final = 2.0
# A server that has refused connections for this long has ended, whatever its processes look like.
_UNREACHABLE_S: Final = 60.0
# A server hangs if requests for its metrics page have timed out for this long.
_SILENT_S: Final = 120.0
# A silent server whose processes compute may be busy with a long prompt, and one whose processes
# are not seen may compute: it hangs if it is silent for this long.
_BUSY_SILENT_S: Final = 600.0
# The load client gives up a search after three minutes, and waits two for the last request.
_SEARCH_PATIENCE_S: Final = 330.0
_ENDED_PATIENCE_S: Final = 15.0
# The load client reports every second.
_LAST_REPORT_S: Final = 1.5
_KINDS_NAMED: Final = 6
_STACKS_PATIENCE_S: Final = 15.0


@dataclass(kw_only=True)
class WatchLoop(RunLoop):
    """A loop that observes a target and controls it by pausing its load.

    Args:
        census_every_s: interval between heap scans under load.
        idle_every_s: interval between idle points; infinite if there are none.
        reset_url: a POST to it empties the target's cache; empty if there is none.
        answers_s: seconds at each idle point for repeating requests; 0 for none.
        alone: whether only this run can send requests, because it started the target.
    """

    scraper: Scraper | None = None
    looks: Looks | None = None
    load: LoadCommand | HttpLoad | None = None
    census_every_s: float = 60.0
    idle_every_s: float = math.inf
    reset_url: str = ""
    answers_s: float = 0.0
    alone: bool = False
    heap_scans_wanted: bool = False
    seen: dict[int, ProcessSample] = field(default_factory=dict)
    shown: set[Capability] = field(default_factory=set)  # known once the metrics page was read

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sign = IdleSign(self.scraper)
        self._work = IdleSign(None)  # from its processes alone
        self._next_census_s = self._resumed_s = self.now_s
        self._cache_reset = False
        self._at_rest: Sequence[ProcessSample] = ()
        self._stopped_s = self._child_s = 0.0
        # Number of series by metric name, and the process they belong to.
        self._page: dict[str, int] = {}
        self._page_of = 0
        self._counted: tuple[float, float] | None = None

    @property
    def control(self) -> Control:
        return self

    @property
    def failure(self) -> str:
        """Why the load has stopped permanently; empty while it continues."""
        return "" if self.load is None else self.load.failure

    @property
    def over(self) -> bool:
        """Always false while our client sends load: a server must not exit then, even with 0."""
        if self._client is not None and self._client.wanted:
            return False
        return super().over

    @property
    def _client(self) -> HttpLoad | None:
        """Our own load client, if that sends the load."""
        return self.load if isinstance(self.load, HttpLoad) else None

    def seen_process(self, pid: int) -> ProcessSample | None:
        """The process ``pid`` as last sampled."""
        return self.seen.get(pid)

    # The methods of ``Control``.

    def drain(self, patience_s: float) -> bool:
        """Pause our load; return whether the target becomes idle within ``patience_s``."""
        if self.load is None:
            return self.is_idle()
        if not self.load.wanted:
            return self.wait_for(self.is_idle, patience_s)
        client = self._client
        if client is not None:
            return self._drain_client(client, patience_s)
        end_s = self.target.could_run_s() + patience_s
        while True:
            self.load.pause()
            self.sign.forget(self.now_s)
            left_s = end_s - self.target.could_run_s()
            self.wait_for(lambda: self.is_idle() or self.sign.stuck(self.now_s), left_s)
            left_s = end_s - self.target.could_run_s()
            if self.is_idle() or left_s <= _BREATH_S:
                return self.is_idle()
            # The load was stopped in the middle of a request: let it finish that one.
            self.load.resume()
            self.wait_for(lambda: False, _BREATH_S)

    def _drain_client(self, client: HttpLoad, patience_s: float) -> bool:
        """Pause the client; return whether the target runs nothing but abandoned requests."""
        client.pause()
        self.sign.forget(self.now_s)
        self._work.forget(self.now_s)
        rested = self.wait_for(
            lambda: client.rests and (self.is_idle() or self._left() > 0), patience_s
        )
        left = self._left()
        if rested and left > 0 and self.alone:
            self.context.recorder.event(
                EngineViolation(
                    kind="in-flight-at-idle",
                    message=f"{times(left, 'request')} in flight by the server's own gauges, "
                    "although all have ended for the client and the server's processes do nothing",
                    count=left,
                    checkpoint=self.status.checkpoints,
                )
            )
        return rested

    def _left(self) -> float:
        """Number of requests that gauges report in flight while the processes are inactive."""
        scrape = self._scrape()
        if scrape is None or self.sign.since_s is not None:
            return 0.0
        idle = self._work.idle_for_s() >= _LEFT_FOR_S
        return (scrape.running or 0.0) + (scrape.waiting or 0.0) if idle else 0.0

    def hold_load(self) -> None:
        """Pause the load, because the target has ended."""
        if self.load is not None and self.load.wanted:
            self.load.pause()

    def search_culprits(self) -> CrashSearch | None:
        """Resend the requests that were in flight when the target ended; return the result.

        None if the load client did not finish in time.
        """
        client = self._client
        assert client is not None, "only our own requests can be sent again"
        client.search()
        try:
            self.run_until(lambda: client.rests, self.now_s + _SEARCH_PATIENCE_S)
        except WorkerLostError:
            # The client notices it too, and reports at which request.
            self._hear(client, lambda: client.rests or bool(client.failure), _ENDED_PATIENCE_S)
        return client.searched if client.rests else None

    def is_idle(self) -> bool:
        """Whether nothing has run for some time."""
        return self.sign.idle_for_s() >= _IDLE_FOR_S

    def resume(self) -> None:
        """Resume our load, or start it."""
        if self.load is not None and self.load.wanted:
            self.load.resume()
        elif self.load is not None:
            self.load.start()
        self.sign.forget(self.now_s)
        self._resumed_s = self.now_s
        self._next_census_s = self.now_s + self.census_every_s

    def flush(self, patience_s: float) -> bool:
        """Empty the target's cache if the user said how; return whether it worked."""
        asked = Asked(lambda: post(self.reset_url))
        asked.start()
        self.wait_for(lambda: asked.done, patience_s)
        self._cache_reset = asked.done and not asked.failed
        return self._cache_reset

    def no_scan_open(self) -> bool:
        return self.looks is None or not self.looks.busy

    def sample_rest(self) -> None:
        """Store the current private memory of every process."""
        self._at_rest = self.target.processes()
        at_rest = [
            ProcessSample(
                process.role,
                process.pid,
                process.started,
                {"rest_anon_swap_bytes": process.m[MEMORY]},
                process.host,
                process.rank,
            )
            for process in self._at_rest
            if MEMORY in process.m
        ]
        if at_rest:
            self.context.recorder.sample(self.now_s, {}, processes=at_rest)

    def post_checkpoint(self, index: int, *, audit: bool) -> Round | Answered:
        """Query what every idle process holds, and wait, because the load resumes next."""
        self._record_pools(index)
        self._record_page(index)
        self.status.checkpoints += 1
        look = self._look_at_rest(index)
        self._repeat_answers()
        return look

    def _look_at_rest(self, index: int) -> Round | Answered:
        point = IdlePoint(
            index=index,
            counters=self._counters(),
            cache_reset=self._cache_reset,
            still_idle=lambda: self.sign.since_s is not None or self._left() > 0,
            handles={
                process.pid: {name: process.m[name] for name in HANDLES if name in process.m}
                for process in self._at_rest
            },
        )
        if self.looks is None:
            self._record_handles(point, frozenset())
            return Answered()
        look = self.looks.ask_idle(point)
        self.wait_for(lambda: look.answer is not None, _LOOK_PATIENCE_S)
        answers = [event for _, event in look.answer or () if isinstance(event, IdleLook)]
        self._record_handles(point, {answer.pid for answer in answers})
        return look

    def _record_handles(self, point: IdlePoint, answered: Container[int]) -> None:
        """Record what each process without an answer from a probe holds open."""
        idle = point.still_idle()
        for process in self._at_rest:
            if process.pid not in answered:
                self.context.recorder.event(
                    IdleLook(
                        role=process.role,
                        pid=process.pid,
                        host=process.host,
                        rank=process.rank,
                        index=point.index,
                        idle=idle,
                        handles=dict(point.handles[process.pid]),
                        counters=dict(point.counters),
                        cache_reset=point.cache_reset,
                    )
                )

    def _repeat_answers(self) -> None:
        """Have our load client repeat requests, after all idle looks have finished."""
        client = self._client
        if client is None or not client.wanted or not client.rests or not self.answers_s:
            return
        client.repeat(self.answers_s)
        self.wait_for(lambda: client.rests, _REPEAT_PATIENCE * self.answers_s + _LOOK_PATIENCE_S)
        if client.repeated is not None:
            self.context.recorder.event(AnswersRepeated(so_far=client.repeated))

    def _record_pools(self, index: int) -> None:
        """Record the idle target's pools, if its metrics page reports them."""
        scrape = self._scrape()
        if scrape is None or not scrape.pools:
            return
        self.shown.add(Capability.POOLS)
        if any("waiting_held" in parts for parts in scrape.pools.values()):
            self.shown.add(Capability.WAITING_HELD)
        self.context.recorder.event(
            Checkpoint(
                index=index,
                idle=True,
                pools={pool: dict(parts) for pool, parts in scrape.pools.items()},
                running=scrape.running or 0.0,
                waiting=scrape.waiting or 0.0,
                counters={bare(name): count for name, count in self._counters().items()},
            )
        )

    def _record_page(self, index: int) -> None:
        """Record how many series each metric has at this idle point: the page is treated like a
        process whose containers are its metrics.
        """
        scrape = self._scrape()
        if scrape is None or not scrape.by_name:
            return
        pid, recorder = self.target.pid or 0, self.context.recorder
        if pid != self._page_of:
            self._page_of, self._page = pid, {}
        now = {**dict.fromkeys(self._page, 0), **scrape.by_name}
        changed = {name: count for name, count in now.items() if self._page.get(name) != count}
        self._page = now
        recorder.event(
            Census(role=PAGE, pid=pid, whole=True, entries=changed, way="page", at_rest=True)
        )
        recorder.event(
            IdleLook(
                role=PAGE,
                pid=pid,
                index=index,
                counters=dict(self._counters()),
                cache_reset=self._cache_reset,
            )
        )

    def reclaim(self, patience_s: float) -> None:
        """Do nothing: an external target cannot be asked to release memory."""

    def leave(self, patience_s: float) -> None:
        """Stop the load; the run itself ends the target."""
        if self.load is not None:
            self.load.stop()

    # The parts of a turn.

    def _probe(self, now_s: float) -> None:
        self.sign.look(now_s, list(self.seen))
        if self._client is not None or self._page_silent_s() > 0:
            self._work.look(now_s, list(self.seen))
        if self._client is not None:
            self._note_answers(self._client)
        if self.load is not None:
            self.load.tend()
        if self.samples_wanted and self.sampler.begin():
            scrape = self._scrape()
            cost = {"probe_stop_s": self._stopped_s, "probe_child_s": self._child_s}
            counters = self._counters()
            self._saw_work(now_s, counters)
            looked = {} if self.looks is None else cost
            levels = {} if self._client is None else self._client.levels()
            reported = {**self.target.counters(), **_levels(scrape), **counters, **levels, **looked}
            self._finish_sample(now_s, reported)
        if self.looks is not None:
            self._look(self.looks, now_s)

    def _note_answers(self, client: HttpLoad) -> None:
        for fault in client.take_answer_faults():
            self.context.recorder.event(EngineViolation(kind="answer", message=fault))

    def _watch(self, now_s: float) -> None:
        client = self._client
        page_s = self._page_silent_s()
        if client is None or not client.wanted:
            super()._watch(now_s)
            if page_s > _SILENT_S and self._stands_still(page_s):
                raise self._hang("its metrics page has not answered", now_s - page_s)
        elif self.target.exit_status() is not None:
            raise WorkerLostError("exit", "", self._while_serving(client))
        elif client.unreachable_for_s > _UNREACHABLE_S:
            detail = f"it accepted no connection for {_UNREACHABLE_S:.0f} s"
            reason = "hang" if self.alone else "unreachable"
            raise WorkerLostError(reason, detail, self._while_serving(client))
        elif client.silence.is_hang and self._stands_still(client.silence.for_s):
            raise self._hang("it has sent nothing to waiting requests", client.silence.heard_s)

    def _page_silent_s(self) -> float:
        return 0.0 if self.scraper is None else self.scraper.silent_for_s()

    def _stands_still(self, silent_s: float) -> bool:
        """Whether a silent server does nothing, or has been silent for longer than work takes."""
        idle = bool(self.seen) and self._work.idle_for_s() >= _LEFT_FOR_S
        return idle or silent_s > _BUSY_SILENT_S

    def _hang(self, said: str, since_s: float) -> WorkerLostError:
        after_s = max(0.0, self.context.recorder.now_s - (self.now_s - since_s))
        detail = f"{said} since {format_duration(after_s)} into the run"
        stacks = [] if self.looks is None else self.looks.stacks(_STACKS_PATIENCE_S)
        return WorkerLostError("hang" if self.alone else "silent", detail, "", stacks)

    def _while_serving(self, client: HttpLoad) -> str:
        """Describe the requests that our load client had in flight when the target ended."""
        self._hear(client, lambda: bool(client.lost), _LAST_REPORT_S)
        lost = list(client.lost.items())
        if not lost:
            return ""
        kinds = "; ".join(f"{count} with a {kind}" for kind, count in lost[:_KINDS_NAMED])
        more = "; and others" if len(lost) > _KINDS_NAMED else ""
        in_flight = sum(client.lost.values())
        return f"with {times(in_flight, 'request')} in flight: {kinds}{more}"

    def _hear(self, client: HttpLoad, done: Callable[[], bool], patience_s: float) -> None:
        """Read only the client's reports until ``done``: a normal turn fails without the target."""
        give_up_s = self.now_s + patience_s
        while not done() and self.now_s < give_up_s:
            self.context.clock.sleep(_BREATH_S / 4)
            client.tend()

    def _next_s(self) -> Sequence[float]:
        return (*super()._next_s(), self.now_s + SIGN_EVERY_S)

    def _look(self, looks: Looks, now_s: float) -> None:
        if self.heap_scans_wanted and now_s >= self._next_census_s and not looks.busy:
            self._next_census_s = now_s + self.census_every_s
            looks.ask_census(self._resumed_s + self.idle_every_s - now_s)
        for event in looks.collect():
            if isinstance(event, Census):
                self.status.heap_scans += 1
                self._child_s += event.cpu_s
                # When idle, a pause delays no request.
                self._stopped_s += 0.0 if event.at_rest else event.pause_s

    def _saw_work(self, now_s: float, counters: Mapping[str, float]) -> None:
        """Update requests per second since the last sample, for the live view."""
        name = observed_drivers(counters).requests
        count = counters.get(name)
        before, self._counted = self._counted, None if count is None else (now_s, count)
        if before is not None and count is not None and now_s > before[0]:
            self.status.requests_per_s = (count - before[1]) / (now_s - before[0])

    def _saw_processes(self, processes: Sequence[ProcessSample]) -> None:
        super()._saw_processes(processes)
        self.seen = {process.pid: process for process in processes}

    def _scrape(self) -> Scrape | None:
        return None if self.scraper is None else self.scraper.latest()

    def _counters(self) -> Mapping[str, float]:
        """The counters of the target and of our load client."""
        scrape = self._scrape()
        of_client = {} if self._client is None else self._client.counters()
        return {**({} if scrape is None else scrape.counters), **of_client}

    def _latencies_so_far(self) -> LatencyCounts:
        return {} if self._client is None else self._client.take_latencies()


class Answered:
    """An answer to a question that was never sent."""

    answer: object = True


def _levels(scrape: Scrape | None) -> dict[str, float]:
    """Return the levels of a scrape for a sample."""
    if scrape is None:
        return {}
    found = dict(scrape.gauges)
    # A page that could not be read has an unknown number of series, not none.
    if scrape.by_name:
        found["scraped_series"] = float(scrape.series)
    if scrape.running is not None:
        found["running_requests"] = scrape.running
    if scrape.waiting is not None:
        found["waiting_requests"] = scrape.waiting
    return found
