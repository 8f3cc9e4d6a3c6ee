"""What a run and its load client say to each other, one JSON object a line."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from hybridbench.records.json_value import JsonValue

Api: TypeAlias = Literal["completions", "ids", "chat", "responses", "generate"]
# Those whose prompts are token ids, and those that have sessions.
OF_IDS: Final[frozenset[Api]] = frozenset({"ids", "generate"})
OF_SESSIONS: Final[frozenset[Api]] = frozenset({"generate"})
# Prompts as text are made of so many words.
TEXT_WORDS: Final = 128

# How late requests left, beside the latencies that the client measures of them.
LATE: Final = "late"

# What the client counts of the start, by the names of event counters.
COUNTED: Final = (
    "requests_submitted",
    "finishes",
    "requests_rejected",
    "requests_failed",
    "abort_queued",
    "abort_prefill",
    "abort_decode",
    "prompt_tokens",
    "output_tokens",
)


class LoadStart(msgspec.Struct, frozen=True, kw_only=True):
    """The first line to the client: whom it asks, what, and how.

    Args:
        url: of the server, without ``/v1``.
        api: which of its interfaces; those ``OF_IDS`` get prompts as token ids, others as text.
        stream: whether answers come token by token.
        model: the name that the server knows; empty for the first that it lists.
        key: sent as a bearer's token; empty for none.  It is in no artefact.
        profile: every key of the profile, as ``Profile.resolved`` gives them.
        seed: of the traffic.
        vocab_size: token ids are below this; of text it is the number of words.
        trace: a recorded trace instead of the profile's traffic: path, scale of lengths, speedup,
            unit of times; None for none.
        repeats: whether answers are to be asked for again.
        exact: whether the server was started so that a batch changes no answer.
        culprits: whether the requests that end the server are to be looked for.
    """

    url: str
    api: Api
    stream: bool
    model: str
    key: str
    profile: dict[str, JsonValue]
    seed: int
    vocab_size: int
    trace: tuple[str, str, float, str] | None = None
    repeats: bool = False
    exact: bool = False
    culprits: bool = False


class LoadOrder(msgspec.Struct, frozen=True):
    """Each further line to the client.

    To repeat is to ask for a sample of answers again, for ``seconds``.  To search is to send the
    requests that were in flight when the server ended to the one that was started in its place.
    For both the client must be at rest.
    """

    do: Literal["pause", "resume", "repeat", "search"]
    seconds: float = 0.0


class Differing(msgspec.Struct, frozen=True):
    """An answer that is not the one that its request has alone, without the server's cache.

    Args:
        place: of the first token that differs, or where that is not known of the character.
        prompt_tokens: of the request.
        margin: how much likelier the token was that the request has alone, in nats; None where the
            server does not say.
        reused: whether the server had taken some of the prompt from its cache; None as before.
    """

    place: int
    prompt_tokens: int
    margin: float | None = None
    reused: bool | None = None


class Repeated(msgspec.Struct, frozen=True, kw_only=True):
    """What came of answers that were asked for again without the server's cache.

    Args:
        compared: answers, which had so many ``tokens``.
        known: of them those of which the server said whether they had reused something; so many had
            ``reused``.
        served_differ: answers that are not those that their requests have alone.
        control_differ: the same of the answers that several requests got at once, without cache.
        served, control: the first of them.
        usual_gap: between the likeliest token and the next, in nats: the median; None where the
            server says nothing of them.
        noise: the largest difference, in nats, between logprobs of equal tokens in answers that are
            the same, at ``noise_tokens`` places: what rounding does on this server.
        exact: whether the server was started so that a batch changes no answer.
        left_out: finished requests that were not compared, by the reason.
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


class SentAgain(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was sent again, without its texts.

    Args:
        kind: what it is like, in words.
        method, path, content_type: as HTTP has them.
        body: its JSON with the length of each text and list instead; of another body its length.
        is_cut_off: whether the connection closes in the middle of the body.
    """

    kind: str
    method: str
    path: str
    content_type: str
    body: JsonValue
    is_cut_off: bool = False


class CrashSearch(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the requests that were in flight when a server ended end it again.

    Args:
        suspects: how many there were.
        sent: how often some of them were sent at once.
        ended: how often the server ended of that.
        smallest: the fewest that ended it; empty where none have.
        waits: whether the server has ended of what was sent last, and must be started again.
        over: whether nothing more is to be sent.
    """

    suspects: int = 0
    sent: int = 0
    ended: int = 0
    smallest: tuple[SentAgain, ...] = ()
    waits: bool = False
    over: bool = True


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the client says every second, and at once when nothing is in flight any more.

    Args:
        counts: requests and tokens so far, by the names of event counters.  Those that were sent
            are those that ended (finished, rejected, failed or cut off by the client) and those in
            flight.
        in_flight: requests that have not ended.
        lost: requests that the server has broken since it last answered one, by what they are
            like; first those that are unusual.
        latencies: ``LatencyCounts`` since the report before, and ``LATE``.
        cpu_s: processor time of the client so far.
        private_bytes: its private memory, in RAM or swapped out.
        paused: whether it sends nothing.
        orders: how many it has followed so far.
        repeated: what came of answers that were asked for again; None where none were, and while
            requests are sent.
        search: which requests end the server; None where nobody has asked, and as above.
        failure: why it can send nothing more; empty while it can.
    """

    counts: dict[str, int]
    in_flight: int
    lost: dict[str, int]
    latencies: dict[str, dict[int, int]]
    cpu_s: float
    private_bytes: int
    paused: bool
    orders: int
    repeated: Repeated | None = None
    search: CrashSearch | None = None
    failure: str = ""
