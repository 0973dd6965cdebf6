"""Check who may change the state of replicas: the worker that leads, by its token, while no state is lost.

Keep the note of a leader for the next one, too.
"""

from __future__ import annotations

from .errors import CancelledError, StateLostError
from .replica_shares import ReplicaShares


class ReplicaFencing(ReplicaShares):
    """The part of `ReplicaStepsState` that checks the leader's token, and has these attributes; see there."""

    leader: int | None
    token: int
    _abandoned: str | None
    _notes: str
    _beginner: tuple[str, int] | None

    def note(self, text: str) -> None:
        """Keep what the next leader will need, in place of what was noted before."""
        self._notes = text

    def notes(self) -> str:
        """Return the latest note."""
        return self._notes

    @property
    def _is_free(self) -> bool:
        """Test whether nobody leads, nor is to begin again."""
        return self.leader is None and self._beginner is None

    def check_leader(self, token: int) -> None:
        """Check the token of somebody who leads.

        Raises:
            CancelledError: another worker leads, or training has come to its end.
            StateLostError: nobody leads: the state in which the token was given is lost, or it was given up.
        """
        if token and not self.token:
            raise StateLostError(f"the state in which token {token} was given is lost; nobody leads yet")
        if token != self.token and self.leader is None and not self._has_ended:
            raise StateLostError(f"token {token} was given up, as all workers were taken for dead; nobody leads since")
        if token != self.token:
            by = "nobody leads" if self.leader is None else f"worker {self.leader} leads"
            why = f"{by}, with token {self.token}, since the worker before was taken for dead or has left"
            raise CancelledError(f"token {token} does not lead any more: {why}. What it does now changes nothing")

    def check_whole(self) -> None:
        """Check that the state of the generation is not lost.

        Raises:
            StateLostError: it is.
        """
        if self._abandoned is not None:
            raise StateLostError(self._abandoned)


__all__ = ["ReplicaFencing"]
