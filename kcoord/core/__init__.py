"""The coordinator as a deterministic state machine: events in, outcomes out. No clock, socket, file, logger or random
source.
"""
