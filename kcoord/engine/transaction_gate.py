"""Which transactional batches Produce may append: those for a partition of the producer's open transaction.

The transaction coordinator knows that. Produce asks before the batch is checked and again when it is appended, since
the transaction may end in between.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from kcoord.protocol.errors import INVALID_PRODUCER_ID_MAPPING


@mypyc_attr(allow_interpreted_subclasses=True)
class TransactionGate:
    """This one knows no transactional id. The owner of the coordinator replaces `ProduceHandler.gate`."""

    def check_write(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        topic: str,
        partition: int,
        version: int,
    ) -> int:
        """The error code for a transactional batch in a Produce request of `version`; NONE if it may be appended."""
        return INVALID_PRODUCER_ID_MAPPING
