"""A server for the tests of unittest, with or without pytest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar
from unittest import TestCase

from kcoord.testing.fixture import KcoordServer


class KcoordTestCase(TestCase):
    """`self.kcoord` is a server of the class's own, which is empty before each test.

    With coroutines as tests: `class OrdersTest(KcoordTestCase, IsolatedAsyncioTestCase)`. `kcoord_settings` are the
    server's settings, and `kcoord_seed` is what each test begins with.
    """

    kcoord: ClassVar[KcoordServer]
    kcoord_settings: ClassVar[Mapping[str, object]] = {}
    kcoord_seed: ClassVar[str | Path | Mapping[str, Any] | None] = None

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.kcoord = KcoordServer(cls.kcoord_settings)
        cls.kcoord.start()
        cls.addClassCleanup(cls.kcoord.stop)

    def setUp(self) -> None:
        super().setUp()
        self.kcoord.begin_test()
        if self.kcoord_seed is not None:
            self.kcoord.seed(self.kcoord_seed)
        self.addCleanup(self.kcoord.check)
