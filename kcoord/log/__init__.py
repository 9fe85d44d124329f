"""The append-only log: record batches in Kafka's on-disk format behind one Storage interface.

    storage         what a file system is to the log; the disk, memory, and memory that forgets the unsynced
    segment         one `<base offset>.log` with its two indexes
    partition_log   the segments of one topic partition
    directory       a data directory: its marks, its logs, recovery when it is opened
    journal         group commit over all logs: write, sync, move the durable ends
    serde           coordinator and metadata records to bytes and back

Nothing here logs or waits: facts are returned or raised, and the caller brings the time.
"""
