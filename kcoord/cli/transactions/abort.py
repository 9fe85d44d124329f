"""`kcoord transactions abort`: the abort marker of a hanging transaction (KIP-664)."""

from __future__ import annotations

import click

from kcoord.cli.online.run import cluster_options, output_option
from kcoord.cli.output import Column, emit, emit_json
from kcoord.cli.transactions.cluster import Cluster, ClusterError, check
from kcoord.cli.transactions.common import friendly
from kcoord.cli.transactions.hanging import OpenTransaction, hanging, open_transactions
from kcoord.protocol import apis
from kcoord.protocol.errors import UNKNOWN_TOPIC_OR_PARTITION
from kcoord.protocol.metadata import MetadataResponseTopic
from kcoord.protocol.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


@click.command()
@cluster_options
@click.option("--topic", "-t", required=True, metavar="TOPIC", help="The topic.")
@click.option("--partition", "-p", required=True, type=click.IntRange(min=0), metavar="N", help="The partition.")
@click.option("--start-offset", type=click.IntRange(min=0), metavar="N", help="The first offset of the transaction.")
@click.option(
    "--producer-id", type=click.IntRange(min=0), metavar="ID", help="The producer id, instead of --start-offset."
)
@click.option(
    "--producer-epoch", type=click.IntRange(0, 32767), metavar="N", help="The producer epoch, with --producer-id."
)
@click.option("--force", is_flag=True, help="Also abort a transaction that its coordinator still knows.")
@output_option
@friendly
def abort(
    bootstrap: str, timeout: float, topic: str, partition: int, start_offset: int | None, producer_id: int | None,
    producer_epoch: int | None, force: bool, output: str,
) -> None:  # fmt: skip
    """Abort a hanging transaction in one partition. `kcoord transactions list --hanging` finds them.

    Identify it by its first offset or by its producer. The command refuses a transaction that its coordinator still
    knows: that one ends at its timeout at the latest, and an abort in one partition would break it. --force aborts it
    anyway.

    \b
    Example:
      kcoord transactions abort --topic orders --partition 0 --start-offset 52
    """
    by_producer = producer_id is not None or producer_epoch is not None
    if (start_offset is None) != by_producer or (producer_id is None) != (producer_epoch is None):
        raise click.UsageError("pass either --start-offset, or --producer-id and --producer-epoch")
    with Cluster(bootstrap, timeout) as cluster:
        found = _find(cluster, topic, partition, start_offset, producer_id, producer_epoch)
        if not force and not hanging(cluster, [found]):
            raise ClusterError(
                f"{found.name}: the coordinator of {found.transactional_id} knows this transaction and ends it; "
                "--force aborts it anyway"
            )
        cluster.retrying(lambda: _write_marker(cluster, found))
    producer = found.producer
    fields = {
        "topic": topic,
        "partition": partition,
        "start_offset": producer.current_txn_start_offset,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
    }
    if output == "json":
        emit_json(fields)
        return
    if output == "csv":
        emit([Column(name, "") for name in fields], [fields], output)
        return
    click.echo(
        f"aborted in {found.name} from offset {producer.current_txn_start_offset}: "
        f"producer id {producer.producer_id}, epoch {producer.producer_epoch}"
    )


def _find(
    cluster: Cluster,
    topic: str,
    partition: int,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
) -> OpenTransaction:
    """The open transaction with that offset or producer."""
    (described,) = cluster.topics([topic])
    check(described.error_code, f"topic {topic}")
    only = [one for one in described.partitions if one.partition_index == partition]
    if not only:
        check(UNKNOWN_TOPIC_OR_PARTITION, f"partition {topic}-{partition}")
    for one in open_transactions(cluster, [MetadataResponseTopic(name=topic, partitions=only)]):
        producer = one.producer
        if producer.current_txn_start_offset == start_offset:
            return one
        if producer.producer_id == producer_id and producer.producer_epoch == producer_epoch:
            return one
    what = f"that begins at offset {start_offset}"
    if start_offset is None:
        what = f"of producer id {producer_id} with epoch {producer_epoch}"
    raise ClusterError(f"{topic}-{partition} has no open transaction {what}")


def _write_marker(cluster: Cluster, found: OpenTransaction) -> None:
    producer = found.producer
    marker = WritableTxnMarker(
        producer.producer_id,
        producer.producer_epoch,
        False,
        [WritableTxnMarkerTopic(found.topic, [found.partition])],
        # The partition knows no epoch if its coordinator has never written a marker.
        max(producer.coordinator_epoch, 0),
    )
    leader = cluster.leader(found.topic, found.partition)
    request = WriteTxnMarkersRequest([marker])
    answer = cluster.ask(leader, apis.WRITE_TXN_MARKERS, request, WriteTxnMarkersResponse)
    for result in answer.markers:
        for topic in result.topics:
            for one in topic.partitions:
                check(one.error_code, f"the marker in {found.name}")
