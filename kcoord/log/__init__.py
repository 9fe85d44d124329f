"""The append-only log: record batches in Kafka's on-disk format behind one Storage interface.

    storage         the file system interface of the log, on disk, in memory, and in memory with simulated power cuts
    segment         one `<base offset>.log` with its two indexes
    partition_log   the segments of one topic partition
    directory       a data directory: its checkpoints, its logs, and recovery when it is opened
    journal         group commit over all logs: write, sync, move the durable ends
    serde           encodes and decodes coordinator and metadata records

Nothing here writes log messages or reads the clock: functions return or raise what they find, and the caller passes
the time.
"""
