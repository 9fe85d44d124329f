"""What tests say to Spark's JVM, wherever they begin one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

SETTINGS: Final[dict[str, str | int | bool]] = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": 2,
    # Spark makes the folder once somebody uses its catalog, by default in the working folder.
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "kcoord-spark-warehouse"),
    # Tests are over before the second compiler's work pays; without it the code cache is small, and Spark generates
    # some for each query.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m",
}
