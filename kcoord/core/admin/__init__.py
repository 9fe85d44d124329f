"""Requests of admin clients: topics, groups, metadata and configurations."""
