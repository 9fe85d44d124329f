"""A Kafka group coordinator you can hold in your hand."""

try:
    from kcoord._version import VERSION  # type: ignore[import-not-found, unused-ignore]
except ImportError:  # sources that nobody has installed or built
    VERSION = "0.0.0"

__version__: str = VERSION
