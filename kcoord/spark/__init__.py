"""The data pipeline on Spark: the log as tables, and jobs over them. Needs `pip install kcoord[spark]`.

`import kcoord.spark` is cheap; PySpark and PyArrow are imported by what needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("kcoord")` known to this session.

    Where PySpark's workers find `pyspark_kcoord` it is known without; this takes the place of what was found. With a
    local master the source runs in this very interpreter: the `python3` that Spark starts by default is another one
    where no environment is activated, and lacks kcoord.
    """
    import sys

    from kcoord.spark.source import KcoordDataSource

    # A session of Spark Connect has none: there the server's interpreter runs the source.
    context = getattr(spark, "_sc", None)
    if context is None or not str(context.master).startswith("local"):
        spark.dataSource.register(KcoordDataSource)
        return
    # What is registered keeps the interpreter; other functions of the session stay with theirs.
    before, context.pythonExec = context.pythonExec, sys.executable
    try:
        spark.dataSource.register(KcoordDataSource)
    finally:
        context.pythonExec = before
