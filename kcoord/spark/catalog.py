"""Options of tables in Spark's catalog: `CREATE TABLE ... USING kcoord OPTIONS (...)`.

When such a table is created without a column list, Spark asks the source for its schema. It passes all properties of
the table: each option as NAME and as `option.NAME`, and its own, such as `provider` and `location`. When the table is
read, Spark 4.3 passes none of them, only the schema from the catalog. So the options are stored in that schema, in the
metadata of the first column. With a column list Spark does not ask for a schema, and the options are lost.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kcoord.spark.reader.options import STORAGE_PREFIX, BadOption

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OPTION_PREFIX = "option."
PROVIDER = "provider"
METADATA_KEY = "kcoord.options"
# Anyone who can read the catalog, or a file that was written from the table, can read metadata of columns.
SECRET_WORDS = ("secret", "password", "token", "credential", "access_key", "account_key", "sas")


def is_of_catalog(options: Mapping[str, str]) -> bool:
    """Whether these are the properties of a table that is being created."""
    return any(name.lower() == PROVIDER or name.lower().startswith(OPTION_PREFIX) for name in options)


def stated_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options that the user gave, where Spark passes a table's properties; else all of them.

    A relative path is relative to the working directory, as for `load`. Raises BadOption.
    """
    if not is_of_catalog(options):
        return dict(options)
    stated = {
        name[len(OPTION_PREFIX) :]: value for name, value in options.items() if name.lower().startswith(OPTION_PREFIX)
    }
    for name in stated:
        if name.lower().startswith(STORAGE_PREFIX) and any(word in name.lower() for word in SECRET_WORDS):
            raise BadOption(
                f"{name} is not stored in a catalog, where every user could read it. Set it in the environment, "
                "or use a temporary view"
            )
    path = next((value for name, value in options.items() if name.lower() == "path"), "")
    if path:
        stated["path"] = path if ":" in path else os.path.abspath(path)
    return stated


def with_options(schema: StructType, stated: Mapping[str, str]) -> StructType:
    """The schema with the options in the metadata of its first column."""
    from pyspark.sql.types import StructField, StructType

    first, *others = schema.fields
    metadata = {**(first.metadata or {}), METADATA_KEY: json.dumps(dict(stated))}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def options_of(schema: StructType, given: Mapping[str, str]) -> dict[str, str]:
    """The options for a read: the given ones, and those in the schema of a catalog table that are not given again."""
    names = [name.lower() for name in given]
    if "path" in names or "paths" in names:
        return dict(given)
    for field in schema.fields:
        text: Any = (field.metadata or {}).get(METADATA_KEY)
        if text is not None:
            kept = {name: value for name, value in json.loads(text).items() if name.lower() not in names}
            return {**kept, **given}
    return dict(given)
