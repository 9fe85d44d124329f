"""What brokers of earlier Kafka releases offer: APIs with their newest versions.

A server that plays such a release lists only these, and refuses the others as that broker would. How it handles a
request in a version that both have does not change.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.engine.api_versions import unsupported_api_versions
from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersion, ApiVersionsResponse
from kcoord.protocol.errors import NONE, UNSUPPORTED_VERSION

# By release, API keys with their newest version where it changed since the release before, of APIs that kcoord serves.
# Brokers before 4.0 had the protocol of KIP-848 as a preview at most, so it is not listed there.
_CHANGES: Final = {
    "2.1": (
        "0:7 1:10 2:4 3:7 8:6 9:5 10:2 11:3 12:2 13:2 14:2 15:2 16:2 18:2 19:3 20:3 21:1 22:1 23:2 24:1 25:1 26:1 27:0 "
        "28:2 32:2 33:1 35:1 37:1 42:1"
    ),
    "2.2": "2:5 11:4",
    "2.3": "1:11 3:8 8:7 11:5 12:3 14:3 15:3 23:3 44:0",
    "2.4": "0:8 3:9 8:8 9:6 10:3 11:6 12:4 13:4 14:4 15:5 16:3 18:3 19:5 20:4 22:2 42:2 44:1 47:0",
    "2.5": "9:7 11:7 14:5 22:3 28:3 37:2",
    "2.6": "16:4 21:2 32:3 35:2",
    "2.7": "1:12 19:6 20:5 22:4 24:2 25:2 26:2 37:3",
    "2.8": "0:9 2:6 3:11 19:7 20:6 23:4 24:3 25:3 26:3 27:1 32:4 33:2 60:0 61:0",
    "3.0": "2:7 9:8 10:4 65:0 66:0",
    "3.1": "1:13 3:12",
    "3.2": "11:9 13:5 35:3",
    "3.3": "35:4",
    "3.4": "",
    "3.5": "1:15 2:8",
    "3.6": "24:4",
    "3.7": "0:10 1:16 8:9 9:9 60:1",
    "3.8": "0:11 10:5 16:5 22:5 24:5 25:4 26:4 28:4 66:1",
    "3.9": "1:17 2:9 10:6 18:4",
    "4.0": "0:12 2:10 3:13 15:6 26:5 28:5 60:2 68:1 69:1 74:0 75:0",
    "4.1": "0:13 1:18 66:2 74:1",
    "4.2": "2:11 8:10 9:10 27:2",
}
# The first release whose brokers finalize the features of groups and transactions.
_FEATURES_SINCE: Final = "4.0"
RELEASES: Final = (*_CHANGES, "4.3")


def _newest(release: str) -> dict[int, int]:
    versions: dict[int, int] = {}
    for name, changes in _CHANGES.items():
        for change in changes.split():
            key, _, version = change.partition(":")
            versions[int(key)] = int(version)
        if name == release:
            break
    return versions


@final
class Caps:
    """The newest versions that are offered, by API key. Raises ValueError for a release that is not known."""

    def __init__(self, release: str = "", newest: dict[int, int] | None = None) -> None:
        if release and release not in RELEASES:
            raise ValueError(f"kafka_release is one of {', '.join(RELEASES)}, not {release!r}")
        self._newest = {key: api.max_version for key, api in apis.APIS.items() if api.served}
        if release in _CHANGES:
            of_release = _newest(release)
            self._newest = {key: min(of_release[key], most) for key, most in self._newest.items() if key in of_release}
        for key, version in (newest or {}).items():
            self._newest[key] = min(self._newest.get(key, version), version)
        self._has_features = not release or RELEASES.index(release) >= RELEASES.index(_FEATURES_SINCE)

    def allows(self, api_key: int, version: int) -> bool:
        return version <= self._newest.get(api_key, -1)

    def refuse_api_versions(self) -> ApiVersionsResponse:
        """The answer in version 0 to an ApiVersions request that is newer than the release (KIP-511)."""
        response = unsupported_api_versions()
        newest = self._newest[apis.API_VERSIONS]
        response.api_keys = [ApiVersion(one.api_key, one.min_version, newest) for one in response.api_keys]
        return response

    def limit(self, response: ApiVersionsResponse) -> None:
        """Leave in the answer of ApiVersions what is offered."""
        if response.error_code not in (NONE, UNSUPPORTED_VERSION):
            return
        offered = [one for one in response.api_keys if one.min_version <= self._newest.get(one.api_key, -1)]
        response.api_keys = [
            ApiVersion(one.api_key, one.min_version, min(one.max_version, self._newest[one.api_key])) for one in offered
        ]
        if not self._has_features:
            response.supported_features = []
            response.finalized_features = []
            response.finalized_features_epoch = -1
