"""The only room with asyncio: listeners, connections, the turn of the loop, life cycle, configuration."""
