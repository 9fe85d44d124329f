"""The first module of the executable file: imports all others from the file, and calls the command.

Runs inside the file as the frozen module `_onefile_begin`, before anything but Python's core can be imported.
`_onefile` is start.c; `build.py` writes the index.
"""

from __future__ import annotations

import _frozen_importlib as bootstrap
import _imp
import marshal
import sys

import _onefile  # type: ignore[import-not-found]

# The module `typing` cannot be imported yet.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType
    from typing import Any

HEALTH = "kcoord-health"


class Importer:
    """Finds modules in the file (`sys.meta_path`), and for `pkgutil` the modules of a package (`sys.path_hooks`)."""

    def __init__(self, index: dict[str, Any], package: str = "") -> None:
        self.index = index
        self.package = package
        self.loaded: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        found = self.index["modules"].get(name)
        if found is None:
            return None
        kind = found[0]
        is_package = kind == "package"
        tail = name.replace(".", "/") + {"package": "/__init__.py", "module": ".py"}.get(kind, ".so")
        origin = f"{sys.executable}/{tail}"
        spec = bootstrap.ModuleSpec(name, self, origin=origin, is_package=is_package)  # type: ignore[arg-type]
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [f"{sys.executable}/{name.replace('.', '/')}"]
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        kind, *where = self.index["modules"][spec.name]
        if kind == "grouped":
            # One of many that mypyc has compiled into one library.
            library = sys.modules.get(where[0]) or __import__(where[0])
            module = _onefile.call_capsule(getattr(library, "init_" + spec.name.replace(".", "___")))
        elif kind == "native":
            module = self._native(spec, *where)
        else:
            return None
        module.__file__ = spec.origin
        return module  # type: ignore[no-any-return]

    def _native(self, spec: ModuleSpec, offset: int, size: int, needed: Sequence[str]) -> ModuleType:
        for library in needed:
            if library not in self.loaded:
                _onefile.load_library(library, *self.index["libraries"][library])
                self.loaded.add(library)
        descriptor, path = _onefile.open_module(spec.name, offset, size)
        try:
            return _imp.create_dynamic(bootstrap.ModuleSpec(spec.name, None, origin=path))
        finally:
            _onefile.close_module(descriptor, path)

    def exec_module(self, module: ModuleType) -> None:
        code = self.get_code(module.__name__)
        if code is not None:
            exec(code, module.__dict__)
        else:
            _imp.exec_dynamic(module)

    def get_code(self, name: str) -> CodeType | None:
        kind, *where = self.index["modules"][name]
        if kind not in ("module", "package"):
            return None
        return marshal.loads(_onefile.data(*where))  # type: ignore[no-any-return]

    def get_source(self, name: str) -> None:
        return None

    def is_package(self, name: str) -> bool:
        return bool(self.index["modules"][name][0] == "package")

    def get_data(self, path: str) -> bytes:
        """A file of a package, by its path below the program."""
        try:
            return bytes(_onefile.data(*self.index["files"][path.removeprefix(f"{sys.executable}/")]))
        except KeyError:
            raise FileNotFoundError(2, "the program has no such file", path) from None

    def find_distributions(self, context: Any) -> Iterator[Any]:
        """For `importlib.metadata`: names and versions."""
        from importlib.metadata import Distribution

        importer = self

        class Part(Distribution):
            def __init__(self, name: str) -> None:
                self._part = name

            def read_text(self, filename: str) -> str | None:
                name, version = self._part, importer.index["versions"][self._part]
                return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" if filename == "METADATA" else None

            def locate_file(self, path: Any) -> Any:
                return f"{sys.executable}/{path}"

        wanted = (context.name or "").lower().replace("_", "-")
        return iter([Part(name) for name in self.index["versions"] if wanted in ("", name)])

    def iter_modules(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        start = f"{self.package}."
        for name, (kind, *_) in self.index["modules"].items():
            if name.startswith(start) and "." not in name[len(start) :]:
                yield prefix + name[len(start) :], kind == "package"

    def of_folder(self, path: str) -> Importer:
        """The hook for `sys.path_hooks`."""
        if not path.startswith(f"{sys.executable}/"):
            raise ImportError(path)
        return Importer(self.index, path[len(sys.executable) + 1 :].replace("/", "."))


def main() -> None:
    importer = Importer(marshal.loads(_onefile.index()))
    sys.meta_path[:] = [*sys.meta_path[:2], importer]
    sys.path_hooks[:] = [importer.of_folder]  # type: ignore[list-item]
    sys.path_importer_cache.clear()
    sys.frozen = True  # type: ignore[attr-defined]
    program = sys.argv[0].rpartition("/")[2]
    if sys.argv[1:3] == ["-P", "-m"] and sys.argv[3:4] and sys.argv[3].startswith("kcoord."):
        # How the server starts processes for maintenance: as `python -P -m MODULE`.
        import runpy

        del sys.argv[:3]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    if program == HEALTH:
        # As in the image: an address may follow.
        sys.argv[1:] = ["health", *(["--bootstrap", sys.argv[1]] if len(sys.argv) > 1 else [])]
    from kcoord.cli.main import main as command

    command(prog_name="kcoord")
