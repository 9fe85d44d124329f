"""The server: listeners, connections, the turn of the event loop, life cycle, configuration. The only asyncio code."""
