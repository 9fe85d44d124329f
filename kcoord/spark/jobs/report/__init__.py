"""The report: one HTML page of everything that the other jobs know, for people.

`collect` sums up in Spark, so that what comes to the driver is small whatever the logs are. `data` is what comes.
`page` makes text of it and knows nothing of Spark; `svg` draws, `text` makes text safe.
"""
