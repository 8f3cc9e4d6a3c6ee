"""Messages between a run and its load client, one JSON object per line."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from hybridbench.records.json_value import JsonValue

Api: TypeAlias = Literal["completions", "ids", "chat", "responses", "generate"]
# Interfaces that take token ids as prompts, and those that have sessions.
OF_IDS: Final[frozenset[Api]] = frozenset({"ids", "generate"})
OF_SESSIONS: Final[frozenset[Api]] = frozenset({"generate"})
# Number of different words in text prompts.
TEXT_WORDS: Final = 128

# Key for how late requests were sent, next to the latencies that the client measures.
LATE: Final = "late"

# What the client counts from its start, under the names of event counters.
COUNTED: Final = (
    "requests_submitted",
    "requests_accepted",
    "finishes",
    "requests_rejected",
    "requests_failed",
    "requests_aborted",
    "abort_queued",
    "abort_prefill",
    "abort_decode",
    "prompt_tokens",
    "output_tokens",
)


class LoadStart(msgspec.Struct, frozen=True, kw_only=True):
    """The first line to the client: the server, the requests, and how to send them.

    Args:
        url: the server's URL, without ``/v1``.
        api: the interface to use; those in ``OF_IDS`` get prompts as token ids, others as text.
        stream: whether answers arrive token by token.
        model: the model's name on the server; empty for the first one listed.
        key: sent as a bearer token; empty for none.  No artefact contains it.
        profiles: every key of each profile, as ``Profile.resolved`` returns them; after a pause the
            next one is sent.
        seed: the seed of the traffic.
        vocab_size: token ids are below this; for text, the number of words.
        trace: a recorded trace instead of the traffic of a single profile: path, scale of lengths,
            speedup, unit of times; None for none.
        repeats: whether requests may be repeated to compare answers.
        exact: whether the server was started in a mode in which batching does not change answers.
        culprits: whether to search for the requests that crash the server.
    """

    url: str
    api: Api
    stream: bool
    model: str
    key: str
    profiles: tuple[dict[str, JsonValue], ...]
    seed: int
    vocab_size: int
    trace: tuple[str, str, float, str] | None = None
    repeats: bool = False
    exact: bool = False
    culprits: bool = False


class LoadOrder(msgspec.Struct, frozen=True):
    """Any further line to the client.

    "repeat" sends a sample of requests again, for ``seconds``.  "search" sends the requests that
    were in flight at the server's crash to its replacement.  For both the client must be idle.
    """

    do: Literal["pause", "resume", "repeat", "search"]
    seconds: float = 0.0


class Differing(msgspec.Struct, frozen=True):
    """An answer that differs from what its request gets alone, without the server's cache.

    Args:
        place: index of the first token that differs, or of the first character if tokens are
            unknown.
        prompt_tokens: length of the request's prompt.
        margin: how much more likely the token was that the request gets alone, in nats; None if
            the server does not report it.
        reused: whether the server took some of the prompt from its cache; None as for ``margin``.
        certain: what shows that rounding is not the cause, whatever the margin: "length" (the
            shorter answer ended before its limit), "text" (only the texts differ), or nothing.
        streamed: whether it was streamed, as were all answers of the run, and differs from what
            its request gets alone without streaming.
        beside: unusual properties of the requests that were in flight at the same time.
    """

    place: int
    prompt_tokens: int
    margin: float | None = None
    reused: bool | None = None
    certain: Literal["", "length", "text"] = ""
    streamed: bool = False
    beside: tuple[str, ...] = ()


class Repeated(msgspec.Struct, frozen=True, kw_only=True):
    """Results of repeating requests without the server's cache.

    Args:
        compared: number of answers, with ``tokens`` in total.
        known: answers for which the server reported reuse; ``reused`` of them had reused some.
        served_differ: answers that differ from what their requests get alone.
        control_differ: the same for answers computed together, but without the cache.
        served, control: the first of them.
        usual_gap: median gap between the most likely token and the next, in nats; None if the
            server reports no logprobs.
        noise: the largest difference, in nats, between logprobs of equal tokens in equal answers,
            at ``noise_tokens`` places: the effect of rounding on this server.
        exact: whether the server was started in a mode in which batching does not change answers.
        left_out: finished requests that were not compared, by reason.
        beside: compared answers during which a request with an unusual property was in flight, by
            property; ``met`` answers had any.
    """

    compared: int = 0
    tokens: int = 0
    known: int = 0
    reused: int = 0
    served_differ: int = 0
    control_differ: int = 0
    served: tuple[Differing, ...] = ()
    control: tuple[Differing, ...] = ()
    usual_gap: float | None = None
    noise: float = 0.0
    noise_tokens: int = 0
    exact: bool = False
    left_out: dict[str, int] = {}
    beside: dict[str, int] = {}
    met: int = 0


class SentAgain(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was sent again, without its texts.

    Args:
        kind: a description in words.
        method, path, content_type: as in HTTP.
        body: its JSON, with each text and list replaced by its length; its length, if not JSON.
        is_cut_off: whether the connection closes in the middle of the body.
    """

    kind: str
    method: str
    path: str
    content_type: str
    body: JsonValue
    is_cut_off: bool = False


class CrashSearch(msgspec.Struct, frozen=True, kw_only=True):
    """Results of the search for requests that crash a server, among those in flight at its crash.

    Args:
        suspects: number of requests in flight.
        sent: how often a subset was sent at once.
        ended: how often that crashed the server.
        smallest: the smallest subset that crashed it; empty if none did.
        waits: whether the server crashed on what was sent last, and must be restarted.
        over: whether the search is finished.
    """

    suspects: int = 0
    sent: int = 0
    ended: int = 0
    smallest: tuple[SentAgain, ...] = ()
    waits: bool = False
    over: bool = True


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """The client's report, sent every second and whenever nothing is in flight any more.

    Args:
        counts: requests and tokens so far, by the names of event counters.  Requests sent are those
            that ended (finished, rejected, failed or cut off by the client) plus those in flight.
        in_flight: requests that have not ended.
        connections: open connections to the server, with those kept for later requests.
        lost: number of requests that failed on the server's side since it last answered one, by
            feature, with unusual features first.
        latencies: ``LatencyCounts`` since the previous report, and ``LATE``.
        cpu_s: CPU time of the client so far.
        private_bytes: its private memory, in RAM or swapped out.
        paused: whether it sends nothing.
        orders: number of commands executed so far.
        repeated: results of repeated requests; None without any, and while requests are sent.
        search: results of the search for culprits; None if not requested, and while requests are
            sent.
        failure: why it cannot send any more; empty while it can.
        answer_faults: a sentence on each answer since the previous report that no request of its
            kind may get.
    """

    counts: dict[str, int]
    in_flight: int
    connections: int
    lost: dict[str, int]
    latencies: dict[str, dict[int, int]]
    cpu_s: float
    private_bytes: int
    paused: bool
    orders: int
    repeated: Repeated | None = None
    search: CrashSearch | None = None
    failure: str = ""
    answer_faults: tuple[str, ...] = ()
