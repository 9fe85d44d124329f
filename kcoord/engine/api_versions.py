"""ApiVersions: the list of what is served, derived from the table of registered APIs, and the features (KIP-584)."""

from __future__ import annotations

from typing import Final

from kcoord.core.topics.features import FinalizedFeatures, supported_features
from kcoord.protocol.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from kcoord.protocol.apis import API_VERSIONS, APIS, Api
from kcoord.protocol.errors import INVALID_REQUEST, NONE, UNSUPPORTED_VERSION

# kcoord's own APIs begin with this key (docs/client-assignors.md). They are served but not listed: no released client
# has them, and other clients are asked to use them in a heartbeat response.
PRIVATE_KEY_MIN: Final = 10000
_SOFTWARE_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-")


def _is_software_text(text: str) -> bool:
    """KIP-511: letters, digits, dots and dashes, with a letter or digit at both ends."""
    if not text or text[0] in ".-" or text[-1] in ".-":
        return False
    for character in text:
        if character not in _SOFTWARE_CHARACTERS:
            return False
    return True


def _api_keys() -> list[ApiVersion]:
    return [
        ApiVersion(api.key, api.advertised_min_version, api.max_version)
        for api in sorted(APIS.values(), key=_by_key)
        if api.served and api.key < PRIVATE_KEY_MIN
    ]


def _by_key(api: Api) -> int:
    return api.key


def _add_features(response: ApiVersionsResponse, version: int, finalized: FinalizedFeatures) -> None:
    """Before version 4 clients could not read a lowest level of 0: those features are left out there."""
    for feature in supported_features():
        if feature.minimum > 0 or version >= 4:
            response.supported_features.append(SupportedFeatureKey(feature.name, feature.minimum, feature.maximum))
        level = finalized.level(feature)
        if level > 0:
            response.finalized_features.append(FinalizedFeatureKey(feature.name, level, level))
    response.finalized_features_epoch = finalized.offset


def api_versions_response(body: ApiVersionsRequest, version: int, finalized: FinalizedFeatures) -> ApiVersionsResponse:
    """The answer to a request of a supported version."""
    if version >= 3 and not (
        _is_software_text(body.client_software_name) and _is_software_text(body.client_software_version)
    ):
        return ApiVersionsResponse(error_code=INVALID_REQUEST)
    response = ApiVersionsResponse(error_code=NONE, api_keys=_api_keys())
    _add_features(response, version, finalized)
    return response


def unsupported_api_versions() -> ApiVersionsResponse:
    """The version 0 body for a version we do not know: which ones we do, for the client to choose from (KIP-511)."""
    api = APIS[API_VERSIONS]
    versions = [ApiVersion(api.key, api.advertised_min_version, api.max_version)]
    return ApiVersionsResponse(error_code=UNSUPPORTED_VERSION, api_keys=versions)
