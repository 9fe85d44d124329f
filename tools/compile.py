"""Build the compiled tree: a copy of the package whose hot modules are one native library.

The source tree is not changed. `build/compiled/` gets a copy of the packages. There mypyc translates the modules listed
under `[tool.kcoord.compile]` in pyproject.toml to C and compiles them next to their sources; Python prefers the native
file. To use the tree, put it first in the path: PYTHONPATH=build/compiled.

C files are compiled in parallel, and an object file is kept as long as its C file, the headers and
the flags stay the same, so a change inside one function costs one C file. With COMPILE_OBJECTS=DIR, object
files and the libraries of each state of the sources are also kept in that folder, where builds in other folders find
them.

Exit codes: 0 built or up to date, 1 failed (with --check: not up to date), 3 there is no C compiler or no Python
headers.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

ROOT = Path(__file__).resolve().parent.parent
GROUP = "kcoord_native"
MYPYC_SETTINGS = Path(__file__).with_name("mypyc.ini").resolve()
NO_COMPILER = 3
# The folders whose sources determine the native code: the hot modules and everything they import.
NATIVE_FOLDERS = ("wire", "protocol", "core", "history", "engine", "client", "log", "server", "spark")
# The packages in the tree: kcoord, and the module with which Spark's workers find its data source.
PACKAGES = ("kcoord", "pyspark_kcoord")
# Calls between the C files of one library need no indirection: nothing is overridden from outside.
EXTRA_FLAGS = ["-fvisibility=hidden", "-fno-semantic-interposition"]


def hot_modules() -> list[str]:
    """The files to compile, relative to the project, as pyproject.toml names them."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        table = tomllib.load(file)["tool"]["kcoord"]["compile"]
    excluded: dict[str, str] = table.get("exclude", {})
    found: set[str] = set()
    for pattern in table["include"]:
        for path in ROOT.glob(pattern):
            if path.name not in ("__init__.py", "__main__.py"):
                found.add(path.relative_to(ROOT).as_posix())
    unknown = sorted(name for name in excluded if not (ROOT / name).is_file())
    if unknown:
        raise SystemExit(f"compile: excluded files that do not exist: {', '.join(unknown)}")
    return sorted(found - set(excluded))


def missing_tool() -> str:
    """What is missing to compile, or an empty string."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if not any(shutil.which(name) for name in (command[0], "cc", "gcc", "clang")):
        return "no C compiler"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "no Python headers"
    try:
        importlib.metadata.version("mypy")
        importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        return "mypy and setuptools are not installed"
    return ""


def fingerprint(modules: list[str], opt_level: str, folders: tuple[str, ...]) -> str:
    """A digest of the tools, of what is compiled, and of the sources in these folders of the package."""
    digest = hashlib.sha256()
    for part in (sys.version, sysconfig.get_platform(), opt_level, *modules, *EXTRA_FLAGS):
        digest.update(part.encode() + b"\0")
    for package in ("mypy", "librt"):
        digest.update(importlib.metadata.version(package).encode() + b"\0")
    roots = [ROOT / package / name for package in PACKAGES for name in folders]
    sources = [path for root in roots for path in root.rglob("*")]
    sources = [path for path in sources if "__pycache__" not in path.parts]
    sources += [Path(__file__).resolve(), MYPYC_SETTINGS]
    for path in sorted(path for path in sources if path.is_file()):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def copy_sources(target: Path) -> None:
    """Make `target` hold a fresh copy of the packages."""
    shutil.rmtree(target, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "*.so")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, target / package, ignore=ignored)


def keep_libraries(source: Path, target: Path) -> None:
    """Copy the native libraries of another tree: only interpreted files have changed."""
    for library in libraries(source):
        (target / library.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(library, target / library.relative_to(source))


def libraries(tree: Path) -> list[Path]:
    return sorted([*tree.rglob("*.so"), *tree.rglob("*.pyd")])


def shared_folder() -> Path | None:
    """The folder that builds share, if there is one."""
    shared = os.environ.get("COMPILE_OBJECTS")
    return ROOT / shared if shared else None


def publish(stage: Path, target: Path) -> None:
    """Move the finished tree into place. A process that starts now sees either the old or the new tree."""
    old = target.with_name("old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    stage.rename(target)
    shutil.rmtree(old, ignore_errors=True)


class Progress:
    """How many C files are compiled: one line that grows on a terminal, otherwise a line for each tenth."""

    def __init__(self) -> None:
        self.tenths = 0

    def show(self, done: int, total: int) -> None:
        tenths = done * 10 // total
        if sys.stderr.isatty():
            end = "\n" if done == total else ""
            print(f"\rcompile: {done} of {total} C files", end=end, file=sys.stderr, flush=True)
        elif tenths > self.tenths:
            print(f"compile: {done} of {total} C files", file=sys.stderr, flush=True)
        self.tenths = tenths


class ObjectCache:
    """Compiles C files in parallel and keeps each object until its inputs change.

    A change in a header (the layout of a native class) recompiles everything, as it must. `shared` is a folder of
    objects by key that several trees use, or None.
    """

    def __init__(self, jobs: int, shared: Path | None) -> None:
        self.jobs = jobs
        self.shared = shared
        self.compiled = 0
        self.progress = Progress()

    def compile(self, compiler: Any, sources: list[str], extension: Any) -> list[str]:
        include = [*extension.include_dirs, sysconfig.get_path("include")]
        flags = [*compiler.compiler_so, *extension.extra_compile_args, *EXTRA_FLAGS]
        command = [*flags, *(f"-I{path}" for path in include)]
        # Headers count by contents, not by path: other trees have other paths.
        headers = hashlib.sha256(" ".join([sys.version, *flags]).encode())
        folders = {str(Path(source).parent) for source in sources} | set(extension.include_dirs)
        for digest in sorted(hashlib.sha256(path.read_bytes()).digest() for path in _headers(folders)):
            headers.update(digest)
        work = [(command, source, headers.hexdigest()) for source in sources]
        # The longest first, so that no worker is left with a big file at the end.
        work.sort(key=lambda item: -os.path.getsize(item[1]))
        with ThreadPoolExecutor(self.jobs) as pool:
            for done, _ in enumerate(pool.map(self._one, work), 1):
                self.progress.show(done, len(work))
        return [source + ".o" for source in sources]

    def _one(self, item: tuple[list[str], str, str]) -> None:
        command, source, headers = item
        key = hashlib.sha256(headers.encode() + Path(source).read_bytes()).hexdigest()
        stamp, target = Path(source + ".key"), Path(source + ".o")
        if stamp.is_file() and stamp.read_text() == key and target.is_file():
            return
        stamp.unlink(missing_ok=True)
        known = self.shared / f"{key}.o" if self.shared else None
        if known and known.is_file():
            shutil.copyfile(known, target)
        else:
            subprocess.run([*command, "-c", source, "-o", str(target)], check=True)
            self.compiled += 1
            if known:
                _copy_whole(target, known)
        stamp.write_text(key)


def _headers(folders: set[str]) -> list[Path]:
    return [path for folder in folders for path in Path(folder).glob("*.h")]


def _copy_whole(source: Path, target: Path) -> None:
    """Copy a file atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.copyfile(source, part)
    part.replace(target)


def native_build(target: Path, modules: list[str], opt_level: str, jobs: int) -> int:
    """Translate and compile `modules` inside `target`; returns the number of compiled C files."""
    from mypyc.build import mypycify  # mypycify handles the import order of setuptools
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    os.chdir(target)
    sys.path.insert(0, str(target))
    os.environ["MYPYPATH"] = str(target)
    extensions = mypycify(
        ["--config-file", str(MYPYC_SETTINGS), "--cache-dir", "../mypyc-cache", *modules],
        opt_level=opt_level, debug_level="0", multi_file=True, target_dir="../c", group_name=GROUP,
    )  # fmt: skip
    cache = ObjectCache(jobs, shared_folder())

    class CachedBuild(build_ext):  # type: ignore[misc, unused-ignore]
        def build_extension(self, ext: Any) -> None:
            objects = cache.compile(self.compiler, list(ext.sources), ext)
            self.compiler.link_shared_object(objects, self.get_ext_fullpath(ext.name))

    command = CachedBuild(Distribution({"name": "kcoord", "ext_modules": extensions}))
    command.inplace = False
    command.build_lib = str(target)
    command.build_temp = str(target.parent / "temp")
    command.ensure_finalized()
    command.run()
    return cache.compiled


def build(out: Path, opt_level: str, jobs: int, quiet: bool = False) -> bool:
    """Bring the compiled tree up to date. Returns whether anything had to be compiled."""
    target, stage = (out / "compiled").resolve(), (out / "stage").resolve()
    modules = hot_modules()
    if not modules:
        raise SystemExit("compile: pyproject.toml lists no existing module")
    native, wanted = wanted_stamp(modules, opt_level)
    stamp = target / ".stamp"
    there = stamp.read_text() if stamp.is_file() else ""
    if there == wanted:
        if not quiet:
            print("compile: up to date")
        return False
    lines = sum((ROOT / name).read_bytes().count(b"\n") for name in modules)
    print(f"compile: translating {len(modules)} modules ({lines} lines) to C", flush=True)
    started = time.monotonic()
    copy_sources(stage)
    shared = shared_folder()
    known = shared / f"{native}.libraries" if shared else None
    compiled = 0
    if there.startswith(native):
        keep_libraries(target, stage)
    elif known and known.is_dir():
        keep_libraries(known, stage)
    else:
        compiled = native_build(stage, modules, opt_level, jobs)
        if known:
            _share(stage, known)
    (stage / ".stamp").write_text(wanted)
    publish(stage, target)
    print(f"compile: {compiled} C files in {time.monotonic() - started:.0f} s")
    return True


def _share(stage: Path, known: Path) -> None:
    """Keep the libraries of a tree in the shared folder, all or none."""
    part = known.with_name(f"{known.name}.{os.getpid()}")
    keep_libraries(stage, part)
    try:
        part.rename(known)
    except OSError:  # another build was first
        shutil.rmtree(part)


def is_current(out: Path, opt_level: str) -> bool:
    """Whether the compiled tree is that of these sources."""
    stamp = out / "compiled" / ".stamp"
    return stamp.is_file() and stamp.read_text() == wanted_stamp(hot_modules(), opt_level)[1]


def wanted_stamp(modules: list[str], opt_level: str) -> tuple[str, str]:
    """The stamp of a tree of these sources, and before that its part for the native code."""
    native = fingerprint(modules, opt_level, NATIVE_FOLDERS)
    return native, f"{native} {fingerprint(modules, opt_level, ('.',))}"


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Let one build of a tree run at a time; a second one waits and then finds everything up to date."""
    out.mkdir(parents=True, exist_ok=True)
    with open(out / ".lock", "w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build", help="parent folder of compiled/")
    parser.add_argument("--opt-level", default=os.environ.get("COMPILE_OPT_LEVEL", "2"), choices=list("0123"))
    jobs = os.cpu_count() or 2
    parser.add_argument("--jobs", type=int, default=jobs, help="number of concurrent C compilers")
    parser.add_argument("--check", action="store_true", help="only report whether the tree is up to date")
    parser.add_argument("--quiet", action="store_true", help="print nothing if up to date")
    parser.add_argument("--list", action="store_true", help="only print the modules that are compiled")
    args = parser.parse_args()
    if args.list:
        print("\n".join(hot_modules()))
        return 0
    missing = missing_tool()
    if args.check:
        return 1 if missing else int(not is_current(args.out, args.opt_level))
    if missing:
        print(f"compile: {missing}: the modules stay interpreted", file=sys.stderr)
        return NO_COMPILER
    try:
        with locked(args.out):
            build(args.out, args.opt_level, args.jobs, args.quiet)
    except subprocess.CalledProcessError as error:
        print(f"compile: the C compiler failed ({error.returncode})", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
