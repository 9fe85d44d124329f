"""The data pipeline on Spark: the log as tables, and jobs over them. Needs `pip install kcoord[spark]`.

`import kcoord.spark` is cheap; PySpark and PyArrow are imported by what needs them.
"""
