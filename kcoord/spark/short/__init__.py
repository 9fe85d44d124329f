"""Jobs over short logs in this process, without Spark.

Starting Spark takes longer than reading a short log and computing what a job wants of it. Long logs, and whatever else
needs Spark, go through `kcoord.spark.jobs`, which define what is computed: tests hold both against each other.
"""
