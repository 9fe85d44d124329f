"""The admin client: groups, offsets, topics, configs, transactions and the cluster itself.

`Admin` is in `admin.py`, what it returns in `results.py`; `spread.py` sends the parts of a call to the brokers that
are responsible for them.
"""
