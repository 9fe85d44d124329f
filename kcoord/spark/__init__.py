"""The data pipeline on Spark: the log as tables, and jobs over them. Needs `pip install kcoord[spark]`.

`import kcoord.spark` is cheap; PySpark and PyArrow are imported by what needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("kcoord")` known to this session.

    PySpark's workers find `pyspark_kcoord` by itself if they can import it; this replaces what they found. With a local
    master the source then runs in this interpreter. The `python3` that Spark starts by default is another one if no
    environment is activated, and does not have kcoord.
    """
    import sys

    from kcoord.spark.source import KcoordDataSource

    # A session of Spark Connect has no context: the server's interpreter runs the source.
    context = getattr(spark, "_sc", None)
    if context is None or not str(context.master).startswith("local"):
        spark.dataSource.register(KcoordDataSource)
        return
    # The registered source keeps this interpreter; other functions of the session keep theirs.
    before, context.pythonExec = context.pythonExec, sys.executable
    try:
        spark.dataSource.register(KcoordDataSource)
    finally:
        context.pythonExec = before
