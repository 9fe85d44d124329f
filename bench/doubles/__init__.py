"""The same test in Python, Go and Java; see bench/fixture.py."""
