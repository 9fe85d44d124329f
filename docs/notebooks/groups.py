# %% [markdown]
# # What a log knows about its groups
#
# A notebook needs `pip install 'path/to/this/checkout[spark]'` and no Java of its own.
# Every job of `kcoord pipeline` is a function from
# DataFrames to a DataFrame, so what it finds can be filtered, joined and drawn like any other table
# ([docs/pipeline.md](../pipeline.md) has every column). These are the logs of a Kafka 4.3 broker that are kept for the
# tests.

# %%
from datetime import UTC, datetime

from pyspark.sql import functions as F

from kcoord.spark.jobs.lag import lag
from kcoord.spark.jobs.offsets_history import offsets_history
from kcoord.spark.jobs.rebalances import ranking, rebalances
from kcoord.spark.jobs.report.collect import collect
from kcoord.spark.jobs.report.page import page
from kcoord.spark.session import session

spark = session("notebook", "local[*]", **{"spark.sql.shuffle.partitions": 2})


def table(name, **options):
    reader = spark.read.format("kcoord").option("table", name)
    return reader.options(**options).load("../../tests/data/broker/logs")


commits = table("offset_commits")
commits.select("group_id", "topic", "partition", "committed_offset", "metadata").orderBy(
    "log_partition", "log_offset"
).limit(5).toPandas()

# %% [markdown]
# ## Lag at the end
#
# Groups that stopped stay. What is not known is null: nothing is left of the partition that could tell.

# %%
behind = lag(commits, table("messages")).where("is_last")
behind.groupBy("group_id").agg(F.count("*").alias("partitions"), F.sum("lag_records").alias("lag_records")).orderBy(
    F.desc("lag_records"), "group_id"
).limit(8).toPandas()

# %% [markdown]
# ## Rebalances of one group
#
# A broker keeps no causes, so they are derived from what changed.

# %%
found = rebalances(table("records", subscribe="__consumer_offsets")).persist()
found.where("group_id = 'next'").orderBy("first_offset").select(
    "from_epoch", "to_epoch", "duration_ms", "cause", "members_before", "members_after", "partitions_moved"
).toPandas()

# %% [markdown]
# Groups that rebalanced again and again:

# %%
ranking(found).where("finding = 'storm'").orderBy("rank").select(
    "group_id", "rebalances", "epochs", "duration_ms", "partitions_moved", "cause"
).toPandas()

# %% [markdown]
# ## Offsets that went back

# %%
offsets_history(commits).where("is_rewind").orderBy("offset_gap", "group_id", "topic", "partition").select(
    "group_id", "topic", "partition", "previous_offset", "committed_offset", "offset_gap", "reset_reason"
).limit(8).toPandas()

# %% [markdown]
# ## All of it as one page
#
# What `kcoord pipeline report` writes.

# %%
report = collect(commits, table("messages"), table("records"), None, "a broker", datetime.now(UTC))
text = page(report)
print(f"{report.groups} groups, {report.commits_total} commits, {report.rebalances_total} rebalances")
plots = text.count('<svg class="plot"')
print(f"a page with {plots} plots in less than {len(text) // 10_000 + 1}0 kB")

# %%
spark.stop()
