"""What one session holds between two turns: the record of its last request, moved and not copied.

A session's request holds a ``ReqKv``; at the end of a turn the record goes to the session's slot,
and the next turn gets all of it.  Whatever is added to that record moves along.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hybridbench.engine.lineage import Writers
from hybridbench.engine.req import Req, ReqKv


@dataclass(slots=True)
class SessionSlot:
    """The record of one session, and who has it in hand.

    While ``borrower`` is None the session itself holds everything in ``kv`` (owner SESSION in the
    ledgers).  While a turn is admitted, or is being decided on, its request holds it (owner REQ):
    then ``borrower.kv is kv``, and the slot only remembers where to find it.

    Pools and caches take a slot wherever they take a request: both have ``rid`` and ``kv``.
    """

    session_id: str
    kv: ReqKv = field(default_factory=ReqKv)
    borrower: Req | None = None
    writers: Writers = ()  # of the last turn that it was saved from

    @property
    def rid(self) -> str:
        """How messages name the holder."""
        return f"of session {self.session_id}"

    def save_from_req(self, req: Req) -> None:
        """The turn is over: all that ``req`` holds is the session's, and ``req`` holds nothing."""
        taken = req.kv
        assert self.kv.is_empty or taken is self.kv, f"{req.rid} does not have {self.rid} in hand"
        req.kv = ReqKv()
        self.kv = taken
        self.borrower = None
        self.writers = req.writers

    def restore_to_req(self, req: Req) -> None:
        """Hand the record to the next turn.  A refused turn gives it back with ``take_back``."""
        assert self.borrower is None, f"{self.rid}: {req.rid} comes while a turn is under way"
        assert req.kv.is_empty, f"{req.rid} holds something of its own"
        # Another record of the same: who formed a batch with the old one can tell that it is over.
        req.kv = self.kv = replace(self.kv)
        req.went_on_from = self.writers
        self.borrower = req

    def take_back(self) -> None:
        """The turn was not admitted: the session holds its record again."""
        req = self.borrower
        assert req is not None, f"{self.rid} was not lent"
        req.kv = ReqKv()
        self.borrower = None
