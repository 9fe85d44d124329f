"""Both ways to a codec by API key: `apis` for clients, which imports a module when it is used, and `server_codec`."""

from __future__ import annotations

import pytest

from kcoord.protocol import apis, server_codec
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter, DecodeError, EncodeError, Reader


@pytest.mark.parametrize("key", apis.APIS, ids=lambda key: apis.APIS[key].name)
def test_both_ways_encode_and_decode_the_same(key: int) -> None:
    api = apis.APIS[key]
    codec = apis.codec_of(key)
    assert codec.request_type.__name__ == api.name + "Request"
    assert codec.response_type.__name__ == api.name + "Response"
    for version in (api.min_version, api.max_version):
        ours, servers = BytesWriter(), BytesWriter()
        request: Message = codec.request_type()
        apis.encode_request(ours, key, request, version)
        assert server_codec.decode_request(key, Reader(ours.getvalue()), version) == request
        assert apis.decode_request(key, Reader(ours.getvalue()), version) == request
        response: Message = codec.response_type()
        apis.encode_response(servers, key, response, version)
        again = BytesWriter()
        server_codec.encode_response(again, key, response, version)
        assert again.getvalue() == servers.getvalue()
        assert apis.decode_response(key, Reader(servers.getvalue()), version) == response


def test_a_message_of_another_api_is_refused() -> None:
    request = apis.codec_of(apis.HEARTBEAT).request_type()
    response = apis.codec_of(apis.HEARTBEAT).response_type()
    for key in (apis.METADATA, 9999):
        with pytest.raises(EncodeError, match=f"HeartbeatRequest does not belong to api key {key}"):
            apis.encode_request(BytesWriter(), key, request, 4)
        with pytest.raises(EncodeError, match=f"HeartbeatResponse does not belong to api key {key}"):
            apis.encode_response(BytesWriter(), key, response, 4)
        with pytest.raises(EncodeError, match=f"HeartbeatResponse does not belong to api key {key}"):
            server_codec.encode_response(BytesWriter(), key, response, 4)


def test_an_unknown_api_is_refused() -> None:
    for decode in (apis.decode_request, apis.decode_response, server_codec.decode_request):
        with pytest.raises(DecodeError, match="unknown api key 9999"):
            decode(9999, Reader(b""), 0)
