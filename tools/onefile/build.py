"""Builds the executable file: one program with Python, kcoord and what it needs, which unpacks nothing.

    build.py SITE TARGET    writes TARGET, TARGET.licences.txt and, for the bill of materials, TARGET.parts.json

SITE is a folder with packages for the Python that runs this. Python's modules become marshalled code in the file, and
native libraries are appended as they are, without symbols: program.h explains how they are loaded. Needs a C compiler,
Python's headers and its shared library, binutils and pyelftools. For Linux with glibc only.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import marshal
import platform
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
PART: Final = struct.Struct("<QQQ104s")
FOOTER: Final = struct.Struct("<QQQ8s")
MAGIC: Final = b"kcoord1\n"
LIBRARY, PYTHON, START, FROZEN, FROZEN_PACKAGE, INDEX = range(1, 7)
ALIGNMENT: Final = 64

# The C library and its parts: those of the machine that runs the program.
SYSTEM: Final = re.compile(r"(lib(c|m|dl|rt|pthread|util|resolv)\.so\.\d+|ld-linux[-\w]*\.so\.\d+|linux-vdso\.so\.\d+)")
# What Python imports before begin.py can import anything.
FIRST: Final = ("__future__", "encodings", "encodings.aliases", "encodings.utf_8", "encodings.ascii")
# Of the standard library: tests, other interfaces, installers, and what needs libraries that no command uses. GNU
# readline, whose licence would be that of the whole program, is among them.
NOT_STANDARD: Final = (
    "_test*", "test", "tests", "xx*", "_xx*", "idlelib", "lib2to3", "tkinter", "_tkinter", "turtle", "turtledemo",
    "ensurepip", "venv", "distutils", "pydoc_data", "pydoc", "sqlite3", "_sqlite3", "dbm", "_dbm", "_gdbm", "curses",
    "_curses*", "readline", "_ctypes_test", "_codecs_*", "_multibytecodec", "nis", "ossaudiodev", "spwd", "_crypt",
    "audioop", "antigravity", "this", "__phello__", "site-packages", "config-*", "_pyrepl", "lib-dynload",
    "_sysconfigdata*", "msilib", "wsgiref", "xmlrpc", "doctest", "pdb", "imaplib", "nntplib", "mailbox", "cgi",
    "telnetlib", "ftplib",
)  # fmt: skip
# Of the packages: what needs Spark or pytest, and what generates code.
NOT_PACKAGED: Final = ("kcoord.spark", "kcoord.codegen", "kcoord.testing.pytest_plugin", "pyspark_kcoord", "pip",
                       "setuptools", "wheel", "pkg_resources", "_distutils_hack", "uvloop._testbase")  # fmt: skip


class BuildError(Exception):
    """The executable cannot be built; the text is the reason."""


@dataclass
class Program:
    """What is in the file: bytes after the launcher, and the tables about them."""

    body: bytearray
    parts: list[tuple[int, int, int, str]] = field(default_factory=list)
    modules: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    libraries: dict[str, tuple[int, int]] = field(default_factory=dict)
    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    # The version of the C library that a part asks for.
    glibc: dict[str, tuple[int, ...]] = field(default_factory=dict)
    # Where the shared libraries are from.
    sources: dict[str, Path] = field(default_factory=dict)

    def add(self, content: bytes) -> tuple[int, int]:
        self.body.extend(b"\0" * (-len(self.body) % ALIGNMENT))
        offset = len(self.body)
        self.body.extend(content)
        return offset, len(content)

    def finished(self) -> bytes:
        tables = {"modules": self.modules, "libraries": self.libraries, "files": self.files, "versions": self.versions}
        self.parts.append((*self.add(marshal.dumps(tables)), INDEX, "index"))
        table = self.add(b"".join(PART.pack(o, s, kind, name.encode()) for o, s, kind, name in self.parts))[0]
        return bytes(self.body) + FOOTER.pack(table, len(self.parts), 0, MAGIC)


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in patterns)


def module_files(root: Path, package: str = "") -> Iterator[tuple[str, Path, bool]]:
    """(name, file, is a package) of every module below a folder. Native code comes before the source of its name."""
    suffixes = (sysconfig.get_config_var("EXT_SUFFIX"), ".abi3.so", ".so", ".py")
    found: dict[str, tuple[Path, bool]] = {}
    for suffix in suffixes:
        for path in sorted(root.glob(f"*{suffix}")):
            name = path.name.removesuffix(suffix)
            if name.isidentifier() and name not in ("__init__", "__main__"):
                found.setdefault(name, (path, False))
    for folder in sorted(root.iterdir()):
        # A folder without a file of its own is a package, too, if it has native code.
        if (folder / "__init__.py").is_file() or (folder.name.isidentifier() and any(folder.glob("*.so"))):
            found[folder.name] = folder / "__init__.py", True
    for name, (path, is_package) in found.items():
        full = f"{package}.{name}" if package else name
        yield full, path, is_package
        if is_package:
            yield from module_files(path.parent, full)


def standard_modules() -> Iterator[tuple[str, Path, bool]]:
    root = Path(sysconfig.get_path("stdlib"))
    for folder in (root, root / "lib-dynload"):
        for name, path, is_package in module_files(folder):
            if not any(matches(part, NOT_STANDARD) for part in name.split(".")):
                yield name, path, is_package


def packaged_modules(site: Path) -> Iterator[tuple[str, Path, bool]]:
    for name, path, is_package in module_files(site):
        if not any(name == each or name.startswith(f"{each}.") for each in NOT_PACKAGED):
            yield name, path, is_package


def code_of(path: Path, name: str, is_package: bool) -> bytes:
    shown = name.replace(".", "/") + ("/__init__.py" if is_package else ".py")
    source = path.read_bytes() if path.is_file() else b""
    return marshal.dumps(compile(source, shown, "exec", dont_inherit=True, optimize=0))


def python_library() -> Path:
    """The shared library of this Python. Raises BuildError."""
    name = sysconfig.get_config_var("INSTSONAME") or ""
    places = [sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LIBPL"), f"{sys.base_prefix}/lib"]
    multiarch = sysconfig.get_config_var("MULTIARCH")
    places += [f"{places[0]}/{multiarch}", f"/usr/lib/{multiarch}"]
    for place in filter(None, places):
        if ".so" in name and Path(place, name).is_file():
            return Path(place, name)
    raise BuildError("this Python has no shared library (libpython3)")


def glibc_of(path: Path) -> tuple[int, ...]:
    """The newest version of the C library that a native file asks for."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection

    newest: tuple[int, ...] = ()
    with open(path, "rb") as file:
        for section in ELFFile(file).iter_sections():
            if isinstance(section, GNUVerNeedSection):
                for _, versions in section.iter_versions():
                    for version in versions:
                        match = re.fullmatch(r"GLIBC_([\d.]+)", version.name)
                        if match:
                            newest = max(newest, tuple(map(int, match[1].split("."))))
    return newest


def needed_by(path: Path) -> dict[str, Path]:
    """The shared libraries that a native file names, with their files; without the C library."""
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile

    with open(path, "rb") as file:
        sections = [each for each in ELFFile(file).iter_sections() if isinstance(each, DynamicSection)]
        named = [tag.needed for each in sections for tag in each.iter_tags("DT_NEEDED")]
    listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
    places = dict(re.findall(r"^\s*(\S+) => (/.+?) \(0x", listed, re.MULTILINE))
    wanted = [name for name in named if not SYSTEM.fullmatch(name) and not name.startswith("libpython")]
    missing = [name for name in wanted if name not in places]
    if missing:
        raise BuildError(f"{path.name} needs {', '.join(missing)}, which cannot be found")
    return {name: Path(places[name]) for name in wanted}


class Builder:
    def __init__(self, site: Path, work: Path) -> None:
        self.site = site
        self.work = work
        self.program = Program(bytearray())
        self.groups = {path.name.partition(".")[0]: path.read_bytes() for path in site.glob("*__mypyc.*.so")}

    def stripped(self, path: Path) -> bytes:
        """A native file without what only debuggers read."""
        copy = self.work / f"{path.name}.stripped"
        shutil.copyfile(path, copy)
        subprocess.run(["strip", "--strip-unneeded", copy], check=True)
        content = copy.read_bytes()
        copy.unlink()
        return content

    def compile_c(self, source: str, target: str, *options: str) -> Path:
        path = self.work / target
        command: list[str | Path] = ["cc", "-O2", "-Wall", "-o", path, HERE / source, *options]
        subprocess.run(command, check=True)
        return path

    def add_library(self, name: str, path: Path, order: list[str]) -> None:
        """A shared library after those that it needs itself; `order` gets their names."""
        for inner, place in needed_by(path).items():
            self.add_library(inner, place, order)
        if name not in self.program.libraries:
            self.program.libraries[name] = self.program.add(self.stripped(path))
            self.program.glibc[name] = glibc_of(path)
            self.program.sources[name] = path
        if name not in order:
            order.append(name)

    def add_python(self) -> None:
        """The launcher, Python, and the modules that it needs to begin."""
        launcher = self.compile_c("launcher.c", "launcher", "-ldl")
        self.program.glibc["launcher"] = glibc_of(launcher)
        self.program.body += self.stripped(launcher)
        order: list[str] = []
        python = python_library()
        for name, path in needed_by(python).items():
            self.add_library(name, path, order)
        for name in order:
            self.program.parts.append((*self.program.libraries[name], LIBRARY, name))
        self.program.parts.append((*self.program.add(self.stripped(python)), PYTHON, python.name))
        self.program.glibc[python.name] = glibc_of(python)
        start = self.compile_c("start.c", "start.so", "-shared", "-fPIC", "-I", sysconfig.get_path("include"))
        self.program.parts.append((*self.program.add(self.stripped(start)), START, "start"))
        self.program.glibc["start"] = glibc_of(start)
        begin = self.program.add(code_of(HERE / "begin.py", "_onefile_begin", False))
        self.program.parts.append((*begin, FROZEN, "_onefile_begin"))

    def add_module(self, name: str, path: Path, is_package: bool) -> None:
        program = self.program
        if path.suffix == ".py":
            where = program.add(code_of(path, name, is_package))
            program.modules[name] = ("package" if is_package else "module", *where)
            if name in FIRST:
                program.parts.append((*where, FROZEN_PACKAGE if is_package else FROZEN, name))
            return
        group = self.group_of(name, path)
        if group:
            program.modules[name] = ("grouped", group)
            return
        order: list[str] = []
        for needed, place in needed_by(path).items():
            self.add_library(needed, place, order)
        program.modules[name] = ("native", *program.add(self.stripped(path)), tuple(order))
        program.glibc[name] = glibc_of(path)

    def group_of(self, name: str, path: Path) -> str:
        """The library with the code of this module, if its own only calls that; else empty."""
        content = path.read_bytes()
        for group, inside in self.groups.items():
            function = f"{group}.init_{name.replace('.', '___')}\0".encode()
            if function in content and function in inside and b"ensure_deps" not in inside:
                return group
        return ""


def build(site: Path, work: Path, target: Path) -> Program:
    """Write the executable file `target`. Returns what is in it. Raises BuildError."""
    builder = Builder(site, work)
    builder.add_python()
    program = builder.program
    for name, path, is_package in [*standard_modules(), *packaged_modules(site)]:
        if name not in program.modules:
            builder.add_module(name, path, is_package)
    missing = [name for name in FIRST if name not in program.modules]
    if missing:
        raise BuildError(f"the standard library has no {', '.join(missing)}")
    for each in importlib.metadata.distributions(path=[str(site)]):
        program.versions[each.metadata["Name"].lower().replace("_", "-")] = each.version
    target.write_bytes(program.finished())
    target.chmod(0o755)
    return program


def system_package(path: Path) -> tuple[str, str]:
    """Name and version of the distribution's package that a library is from; empty where dpkg does not know it."""
    if shutil.which("dpkg-query") is None:
        return "", ""
    for place in (path, path.resolve(), Path(str(path.resolve()).removeprefix("/usr"))):
        found = subprocess.run(["dpkg-query", "-S", place], capture_output=True, text=True)
        if found.returncode == 0:
            package = found.stdout.partition(": ")[0].split(",")[0]
            shown = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True)
            return package.partition(":")[0], shown.stdout
    return "", ""


def listing(program: Program) -> dict[str, Any]:
    """What the packages' bill of materials lacks: Python and the shared libraries, as components of CycloneDX."""
    python = {"type": "platform", "bom-ref": "python", "name": "CPython", "version": platform.python_version(),
              "licenses": [{"license": {"id": "PSF-2.0"}}]}  # fmt: skip
    components: list[dict[str, Any]] = [python]
    for name, path in sorted(program.sources.items()):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        component = {
            "type": "library",
            "bom-ref": f"library-{name}",
            "name": name,
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }
        package, version = system_package(path)
        if package:
            component |= {"version": version, "purl": f"pkg:deb/{package}@{version.replace(':', '%3A')}"}
        components.append(component)
    newest = max(program.glibc.values())
    asking = sorted(name for name, version in program.glibc.items() if version == newest)
    properties = [
        {"name": "kcoord:glibc", "value": ".".join(map(str, newest))},
        {"name": "kcoord:glibc:needed-by", "value": ", ".join(asking)},
    ]
    return {"properties": properties, "components": components}


def licences(site: Path, program: Program) -> str:
    """The licences of everything in the file, one after the other."""
    texts: list[tuple[str, Path]] = [("CPython", Path(sysconfig.get_path("stdlib"), "LICENSE.txt"))]
    for each in importlib.metadata.distributions(path=[str(site)]):
        for file in each.files or ():
            if re.search(r"(licen[cs]e|copying|notice)[^/]*$", str(file), re.IGNORECASE) and ".dist-info" in str(file):
                texts.append((f"{each.metadata['Name']} {each.version}", Path(str(each.locate_file(file)))))
    for name, path in sorted(program.sources.items()):
        package = system_package(path)[0]
        texts.append((name, Path("/usr/share/doc", package, "copyright")))
    parts = [(name, path.read_text(errors="replace").strip()) for name, path in texts if path.is_file()]
    return "".join(f"{'=' * 80}\n{name}\n{'=' * 80}\n\n{text}\n\n" for name, text in parts)


def main() -> int:
    if len(sys.argv) != 3:
        raise SystemExit("usage: build.py SITE TARGET")
    site, target = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    try:
        with tempfile.TemporaryDirectory() as work:
            program = build(site, Path(work), target)
    except BuildError as error:
        raise SystemExit(f"onefile: {error}") from None
    Path(f"{target}.parts.json").write_text(json.dumps(listing(program), indent=1) + "\n")
    Path(f"{target}.licences.txt").write_text(licences(site, program))
    return 0


if __name__ == "__main__":
    sys.exit(main())
