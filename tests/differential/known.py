"""What may differ between a broker and kcoord, and why. Everything else is a finding.

FREE are fields that say nothing about behaviour. KNOWN are differences in behaviour; each names where it is documented.
After most of them the histories of the two servers are not the same, so the comparison of a sequence ends there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.harness.compare import MISSING, Difference

# Texts for people, and hosts, ports, times and ids that a server makes up are symbols already (harness/session.py).
FREE = ("errorMessage", "batchIndexErrorMessage", "throttleTimeMs", "documentation", "clientHost")


@dataclass(frozen=True)
class Known:
    """Every given pattern must match the whole of its text; `where` is the place that documents the difference."""

    where: str
    reason: str
    api: str = ".*"
    version: str = ".*"
    path: str = ".*"
    expected: str = ".*"
    actual: str = ".*"
    kind: str = ".*"
    # Whether later answers may differ for the same reason, so that the comparison of a sequence ends.
    ends: bool = True

    def covers(self, kind: str, d: Difference) -> bool:
        pairs = (
            (self.kind, kind), (self.api, d.api), (self.version, str(d.version)), (self.path, d.path),
            (self.expected, str(d.expected)), (self.actual, str(d.actual)),
        )  # fmt: skip
        return all(re.fullmatch(pattern, text, re.DOTALL) for pattern, text in pairs)


GAPS = "docs/gaps.md, Responses that differ from a broker's"

PART = r"response\.topics\[\d+\]\.partitions\[\d+\]\.errorCode"
PRODUCED = r"response\.responses\[\d+\]\.partitionResponses\[\d+\]"
# A broker answers EndTxn and InitProducerId before the transaction is complete. Until then it answers 51 (19 to Produce
# of old clients), adds offsets to the transaction that ends, and does not show its result.
KIPS = "docs/kips.md, Transactions, Beyond Kafka"

TRANSACTIONS = [
    Known(
        GAPS,
        "InitProducerId with an epoch older than the open transaction's does not abort that transaction",
        api="InitProducerId",
        path=r"response\.errorCode",
        expected="51",
        actual="90",
    ),
    Known(
        GAPS,
        "every transactional write is checked for its transactional id",
        api="TxnOffsetCommit|Produce",
        path=rf"{PART}|{PRODUCED}\.errorCode",
        expected="0|45|47",
        actual="49",
    ),
    Known(
        GAPS,
        "after a refused transactional batch a broker refuses later sequences, until it has the first one",
        api="Produce",
        path=rf"{PRODUCED}\.errorCode",
        expected="45",
        actual="0",
    ),
    Known(
        GAPS,
        "after a refused transactional batch of an old version a broker lets a new version begin with any sequence",
        api="Produce",
        version="1[2-9]",
        path=rf"{PRODUCED}\.errorCode",
        expected="0",
        actual="45",
    ),
]

EXHAUSTED = [
    Known(
        GAPS,
        "a broker fails if a producer repeats an InitProducerId after the last epoch",
        kind="exhausted",
        api="InitProducerId",
        path=r"response\.errorCode",
        expected="-1",
        actual="0|90",
    ),
]

RACING = [
    Known(
        KIPS, "the transaction is not complete on the broker", kind="racing", path=r".*[eE]rrorCode", expected="51|19"
    ),
    Known(KIPS, "the transaction is not complete here", kind="racing", path=r".*[eE]rrorCode", actual="51|19"),
    Known(
        KIPS, "the state of a transaction that ends", kind="racing", path=r".*\.transactionState", expected="Prepare.*"
    ),
    Known(KIPS, "markers that are not written yet", kind="racing", path=r".*(baseOffset|\.offset|activeProducers.*)"),
    Known(KIPS, "markers that are not written yet", kind="racing", path=r".*(lastStableOffset|highWatermark|records)"),
    Known(KIPS, "markers that are not written yet", kind="racing", path=r".*abortedTransactions.*"),
    Known(
        KIPS,
        "offsets that are not committed yet",
        kind="racing",
        api="OffsetFetch",
        path=r".*\.(committedOffset|errorCode)",
    ),
    Known(
        KIPS, "offsets join the transaction that ends", kind="racing", api="TxnOffsetCommit", path=PART, expected="0"
    ),
]

GROUPS = [
    Known(
        GAPS,
        "a member that joins or syncs twice is answered once by a broker: the earlier request never",
        api="JoinGroup|SyncGroup",
        path="response",
        expected=re.escape(MISSING),
        actual=r".*'errorCode': 27.*",
        ends=False,
    ),
    Known(
        GAPS,
        "a member that is removed while its SyncGroup waits never gets an answer from a broker",
        api="SyncGroup",
        path="response",
        expected=re.escape(MISSING),
        actual=r".*'errorCode': 25.*",
        ends=False,
    ),
    Known(
        GAPS,
        "a leader that left is followed by the member that joined first, on a broker by any",
        api="JoinGroup",
        path=r"response\.leader",
        expected="<member-.*",
        actual="<member-.*",
    ),
]

MIXED = [
    Known(
        "docs/kips.md, Consumer groups: differences from Kafka 4.3",
        "a broker cannot upgrade a group with a member that does not support the last generation's protocol",
        api="ConsumerGroupHeartbeat",
        path=r"response\.errorCode",
        expected="-1",
        actual="0",
        kind="mixed",
    ),
]

NO_CONFIGS = r".*configs\[(share|streams)\..*"
ADMIN = [
    Known(GAPS, "no settings of share and streams groups", path=NO_CONFIGS, actual=re.escape(MISSING), ends=False),
    Known(GAPS, "min.insync.replicas is a plain default", path=r".*configs\[min\.insync\.replicas\].*", ends=False),
    Known(
        GAPS,
        "a malformed Metadata request",
        api="Metadata",
        path=r"response\..*errorCode",
        expected="-1",
        actual="42",
        ends=False,
    ),
]

DATA = [
    Known(
        GAPS,
        "the largest timestamp of deleted records",
        api="ListOffsets",
        path=r"response\.topics\[\d+\]\.partitions\[\d+\]\.(timestamp|offset|leaderEpoch)",
        actual="-1",
        ends=False,
    ),
]

KNOWN = TRANSACTIONS + EXHAUSTED + RACING + GROUPS + MIXED + ADMIN + DATA


def is_free(d: Difference) -> bool:
    return d.path.rpartition(".")[2] in FREE


def known(kind: str, d: Difference) -> Known | None:
    return next((one for one in KNOWN if one.covers(kind, d)), None)
