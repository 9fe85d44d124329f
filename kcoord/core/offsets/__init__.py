"""Committed offsets: state, commit, fetch, delete and expiry."""
