"""Coverage-guided fuzzing of a whole engine, for machines that have atheris (`pip install atheris`).

    python -m tests.fuzz.atheris_fuzz -runs=1000000 [CORPUS_FOLDER]

The input is cut into frames: each begins with an API, a version and a kind, chosen by its first bytes, so that most
inputs get past the header. The arguments are libFuzzer's.
"""

from __future__ import annotations

import random
import sys

try:
    import atheris
except ImportError:
    sys.exit("atheris is not installed: pip install atheris")

with atheris.instrument_imports(include=["kcoord"]):
    from kcoord.core.outcome import Now
    from kcoord.protocol import apis
    from tests.fuzz.engine_fuzz import frame_of
    from tests.harness.engine import open_memory_engine, take_output

KEYS = sorted(apis.APIS)
NOW = Now(1000, 1_700_000_000_000)
FRAMES_MAX = 8


def one_input(data: bytes) -> None:
    provider = atheris.FuzzedDataProvider(data)
    engine = open_memory_engine(NOW, random.Random(1))
    session = engine.open_session("127.0.0.1", "127.0.0.1", 9092)
    for _ in range(FRAMES_MAX):
        if not provider.remaining_bytes() or session.close_reason:
            break
        if provider.ConsumeIntInRange(0, 15) == 0:
            frame = provider.ConsumeBytes(64)
        else:
            api = apis.APIS[provider.PickValueInList(KEYS)]
            version = provider.ConsumeIntInRange(api.min_version, api.max_version)
            frame = frame_of(api.key, version, 1, provider.ConsumeBytes(provider.ConsumeIntInRange(0, 400)))
        engine.receive(session, frame, NOW)
        engine.fire_timers(NOW)
        engine.end_turn(NOW)
        engine.take_ready()
        take_output(session)
    engine.close_session(session, NOW)


def main() -> None:
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
