"""Members of kcoord.client and of Kafka's client in one consumer group (KIP-848), which had classic members before."""

from __future__ import annotations

from tests.e2e.rolling import Load, Rolling
from tests.interop.conftest import Target
from tests.interop.test_java_migration import JavaWorker, begin


def test_members_of_the_client_beside_java(quick_target: Target) -> None:
    rolling = Rolling(quick_target.bootstrap, begin)
    rolling.create_topic()
    load = Load(quick_target.bootstrap)
    try:
        for kind in ("java-eager", "kcoord-classic", "java-consumer"):
            rolling.start(kind)
        for kind in ("kcoord-consumer", "kcoord-consumer", "java-consumer"):
            rolling.replace(kind)
        assert rolling.type_of_group() == "CONSUMER"
        rolling.replace("kcoord-consumer")
        rolling.check(load)
    finally:
        load.stop()
        for one in rolling.members:
            if isinstance(one, JavaWorker):
                one.process.kill()
