"""What holds for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes says more about the machine than about us.
settings.register_profile("kcoord", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kcoord")
