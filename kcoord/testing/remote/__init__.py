"""The controls of the fixture as JSON over HTTP, for tests in any language."""
