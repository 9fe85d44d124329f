"""Jobs of the pipeline: functions from DataFrames of the tables to DataFrames. They read and write nothing themselves.

docs/pipeline.md lists their columns.
"""
