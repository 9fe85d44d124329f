"""Makes `spark.read.format("kcoord")` work with nothing registered.

When a session meets its first Python data source, Spark imports every top-level module named `pyspark_*` and takes the
`DefaultSource` of each. So this module is as good as empty: the source, and PySpark with it, are imported when
`DefaultSource` is asked for.
"""

from __future__ import annotations

import sys


def __getattr__(name: str) -> type:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from kcoord.spark.source import KcoordDataSource
    except ImportError as error:
        # Raised as it is, it would keep Spark from finding anybody else's sources too.
        print(f"kcoord: its data source cannot be used: {error}", file=sys.stderr)
        raise AttributeError(f"module {__name__!r} needs `pip install kcoord[spark]`: {error}") from error
    return KcoordDataSource
