"""The test double: rules for requests that pass, and a list of what passed."""
