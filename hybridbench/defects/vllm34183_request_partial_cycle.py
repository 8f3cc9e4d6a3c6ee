"""vllm#34183: each request keeps a hasher that is bound to itself, and so waits for the collector.

``functools.partial(hasher, self)`` stored on ``self`` is a reference cycle of two.  The request and
all it holds, image features above all, are freed by a full collection only.  It had been there for
long and hurt when collections were made rarer (frozen heap, raised thresholds).

Reported: +1.74 GB per round of image requests, 0.20 GB after the cure.
"""

from __future__ import annotations

from functools import partial

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.req import Req, payload_digest

TRUTH = Truth()


def _keep_hasher(self: Req) -> None:
    """Before #34183: the function with the request already in it."""
    self.payload_hasher = partial(payload_digest, self)


def _payload_digest(self: Req) -> bytes:
    hasher = self.payload_hasher
    assert hasher is not None
    TRUTH.add("requests_with_payload")
    bound = hasher.args if isinstance(hasher, partial) else ()
    TRUTH.add("requests_in_a_cycle", int(any(argument is self for argument in bound)))
    TRUTH.add("payload_bytes", len(self.payload))
    return hasher()


DEFECT = Defect(
    slug="request-partial-cycle",
    source="vllm#34183",
    symptom="Finished requests wait for a full collection with the payload they came with; memory "
    "swings by as much as comes between two collections.",
    profile="feature-payload",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("instances-wait-for-collector",),
        subject="Req",
        event="finished request",
        rate="1 request with its payload per finished request",
        drivers=("finishes",),
        harm="requests_in_a_cycle",
        per="requests_with_payload",
        quick_s=45.0,
    ),
    patches=(
        Patch(Req, "_keep_hasher", _keep_hasher, fingerprint="d8014cd85aa0"),
        Patch(Req, "_payload_digest", _payload_digest, fingerprint="a1161854de8e"),
    ),
    harmed="Multimodal servers: host memory grew by gigabytes between two full collections, and "
    "without end where those were switched off.",
    cure="The plain function is stored, and is given the request when it is called.",
    truth=TRUTH,
)
