"""A session's slot, which holds the record of its last request between two turns.

A session's request holds a ``ReqKv``.  At the end of a turn the record moves, uncopied, to the
session's slot, and the next turn gets all of it, including any field added to ``ReqKv`` later.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hybridbench.engine.lineage import Writers
from hybridbench.engine.req import Req, ReqKv


@dataclass(slots=True)
class SessionSlot:
    """The record of one session, and the request that currently holds it.

    While ``borrower`` is None, the session itself holds everything in ``kv`` (owner SESSION in the
    ledgers).  While a turn is admitted or under consideration, its request holds it (owner REQ):
    then ``borrower.kv is kv``, and the slot is only a reference to it.

    Pools and caches accept a slot wherever they accept a request, since both have ``rid`` and
    ``kv``.
    """

    session_id: str
    kv: ReqKv = field(default_factory=ReqKv)
    borrower: Req | None = None
    writers: Writers = ()  # of the last saved turn

    @property
    def rid(self) -> str:
        """The holder's name in messages."""
        return f"of session {self.session_id}"

    def save_from_req(self, req: Req) -> None:
        """End a turn by moving everything that ``req`` holds to the session."""
        taken = req.kv
        assert self.kv.is_empty or taken is self.kv, f"{req.rid} does not have {self.rid} in hand"
        req.kv = ReqKv()
        self.kv = taken
        self.borrower = None
        self.writers = req.writers

    def restore_to_req(self, req: Req) -> None:
        """Lend the record to the next turn; ``take_back`` undoes this if the turn is refused."""
        assert self.borrower is None, f"{self.rid}: {req.rid} comes while a turn is under way"
        assert req.kv.is_empty, f"{req.rid} holds something of its own"
        # A new record with the same contents, so that results for the old one count as late.
        req.kv = self.kv = replace(self.kv)
        req.went_on_from = self.writers
        self.borrower = req

    def take_back(self) -> None:
        """Return the record to the session after its turn was not admitted."""
        req = self.borrower
        assert req is not None, f"{self.rid} was not lent"
        req.kv = ReqKv()
        self.borrower = None
