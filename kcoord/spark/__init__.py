"""The data pipeline on Spark: the log as tables, and jobs over them. Needs `pip install kcoord[spark]`.

`import kcoord.spark` is cheap; PySpark and PyArrow are imported by what needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("kcoord")` known to this session.

    Where PySpark's workers find `pyspark_kcoord` it is known without; this takes the place of what was found.
    """
    from kcoord.spark.source import KcoordDataSource

    spark.dataSource.register(KcoordDataSource)
