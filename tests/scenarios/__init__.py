"""Scenarios: what a coordinator answers, stores and arms, as text files that read like a story."""
