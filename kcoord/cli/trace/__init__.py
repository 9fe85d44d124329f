"""`kcoord trace`: decoded requests and answers between clients and the brokers of a cluster.

`command.py` has the options, `proxy.py` the listeners and connections, `frames.py` reads frames and redirects brokers'
addresses, `printer.py` writes the lines.
"""
