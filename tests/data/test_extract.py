import io
import random
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import limited
from mixmo.data.extract import unpack
from mixmo.utils.errors import UserError
from mixmo.utils.progress import Work, shown

Members = dict[str, bytes]
GOOD: Members = {"set/a.txt": b"alpha", "set/deep/b.txt": b"beta"}


def tar(path: Path, members: Members, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as file:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    return path


def zipped(path: Path, members: Members) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.mkdir(name) if name.endswith("/") else file.writestr(entry, content)
    return path


MAKERS: dict[str, Callable[[Path, Members], Path]] = {
    "a.tar": tar,
    "a.tar.gz": lambda path, members: tar(path, members, "w:gz"),
    "a.zip": zipped,
}
every_kind = pytest.mark.parametrize("kind", list(MAKERS))


def assert_rejected(archive: Path, problem: str, members: int = 10, size: int = 1000) -> None:
    """The error names the archive, and nothing is left beside it."""
    with pytest.raises(UserError, match=problem) as caught:
        unpack(archive, archive.parent / "set", members, size)
    assert str(archive) in str(caught.value)
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]


@every_kind
def test_progress_is_the_position_in_the_archive(tmp_path: Path, kind: str, works: list[Work]):
    archive = MAKERS[kind](
        tmp_path / kind, {f"set/{number}": random.Random(0).randbytes(20_000) for number in range(9)}
    )
    with shown():
        unpack(archive, tmp_path / "set", 10, 1_000_000)
    assert [(work.doing, work.total) for work in works] == [(f"unpacking {kind}", archive.stat().st_size)]
    assert works[0].counts == 9
    assert 0.5 < works[0].done / archive.stat().st_size <= 1


@every_kind
@pytest.mark.parametrize("folders", [{}, {"set/": b"", "set/deep/": b""}], ids=["files", "folders"])
def test_files_and_folders_are_unpacked(tmp_path: Path, kind: str, folders: Members):
    """Also where the archive names its folders, as the real ones do; exactly as much as is allowed."""
    unpack(MAKERS[kind](tmp_path / kind, folders | GOOD), tmp_path / "set", len(folders | GOOD), len(b"alphabeta"))
    assert (tmp_path / "set/a.txt").read_text() == "alpha"
    assert (tmp_path / "set/deep/b.txt").read_text() == "beta"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([kind, "set"])


def test_permissions_are_not_taken_from_the_archive(tmp_path: Path):
    """Neither to run a file as its owner nor, where others have an account, to write to it."""
    entry = tarfile.TarInfo("set/a.txt")
    entry.mode = 0o6777
    with tarfile.open(tmp_path / "a.tar", "w") as file:
        file.addfile(entry)
    unpack(tmp_path / "a.tar", tmp_path / "set", 1, 0)
    assert (tmp_path / "set" / "a.txt").stat().st_mode & 0o6022 == 0


@every_kind
@pytest.mark.parametrize("name", ["", "../evil", "set/../../evil", "/tmp/mixmo-evil", "set\\..\\..\\evil", "C:\\evil"])
def test_members_outside_the_folder_are_rejected(tmp_path: Path, kind: str, name: str):
    inner = tmp_path / "inner"
    inner.mkdir()
    assert_rejected(MAKERS[kind](inner / kind, GOOD | {name: b"gotcha"}), "leave")
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
    assert not Path("/tmp/mixmo-evil").exists()


@every_kind
def test_a_decompression_bomb_is_rejected(tmp_path: Path, kind: str):
    """50 MB of zeros in few bytes: rejected before they are written."""
    archive = MAKERS[kind](tmp_path / kind, GOOD | {"set/zeros": bytes(50_000_000)})
    assert_rejected(archive, "exceeds")


@pytest.mark.parametrize("size", [1000, 10**9], ids=["small", "large"])
@pytest.mark.parametrize("kind", ["a.tar", "a.tar.gz"])
def test_a_header_of_many_bytes_is_rejected_before_it_is_read(tmp_path: Path, kind: str, size: int):
    """50 MB of zeros in the header of a member: rejected before they are in memory, also where files may be large."""
    entry = tarfile.TarInfo("set/a.txt")
    entry.pax_headers = {"comment": "A" * 50_000_000}
    with tarfile.open(tmp_path / kind, "w:gz" if kind == "a.tar.gz" else "w") as file:
        file.addfile(entry)
    del entry
    with limited():
        assert_rejected(tmp_path / kind, "exceeds .* or has a header", size=size)


def test_many_headers_are_rejected(tmp_path: Path):
    """Each is small; the files would be too."""
    entry = tarfile.TarInfo("set/a.txt")
    entry.pax_headers = {"comment": "A" * 100_000}
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as file:
        for _ in range(10):
            file.addfile(entry)
    assert_rejected(tmp_path / "a.tar.gz", "exceeds")


@pytest.mark.parametrize("field", [{"mtime": "inf"}, {"mtime": "1e300"}, {"size": "-5"}])
def test_impossible_numbers_in_headers_are_rejected(tmp_path: Path, field: dict[str, str]):
    entry = tarfile.TarInfo("set/a.txt")
    entry.pax_headers = field
    with tarfile.open(tmp_path / "a.tar", "w") as file:
        file.addfile(entry)
    assert_rejected(tmp_path / "a.tar", "damaged|exceeds")


def test_a_damaged_member_in_lzma_is_rejected(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_LZMA) as file:
        file.writestr("set/a.txt", random.Random(0).randbytes(900))
    content = bytearray((tmp_path / "a.zip").read_bytes())
    content[43] = 255  # a property of the compressor
    (tmp_path / "a.zip").write_bytes(content)
    assert_rejected(tmp_path / "a.zip", "damaged")


@every_kind
def test_too_many_members_are_rejected(tmp_path: Path, kind: str):
    archive = MAKERS[kind](tmp_path / kind, {f"set/{n}": b"" for n in range(11)})
    assert_rejected(archive, "exceeds")


def test_a_zip_that_declares_fewer_bytes_than_it_has_is_rejected(tmp_path: Path):
    archive = zipped(tmp_path / "a.zip", {"set/zeros": bytes(5_000_000)})
    content = archive.read_bytes().replace(struct.pack("<I", 5_000_000), struct.pack("<I", 500))
    archive.write_bytes(content)
    assert_rejected(archive, "damaged")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_in_a_tar_are_rejected(tmp_path: Path, kind: bytes):
    archive = tar(tmp_path / "a.tar", GOOD)
    with tarfile.open(archive, "a") as file:
        entry = tarfile.TarInfo("set/link")
        entry.type, entry.linkname = kind, "a.txt"
        file.addfile(entry)
    assert_rejected(archive, "set/link")


def test_links_in_a_zip_are_rejected(tmp_path: Path):
    archive = zipped(tmp_path / "a.zip", GOOD)
    with zipfile.ZipFile(archive, "a") as file:
        entry = zipfile.ZipInfo("set/link")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(entry, "/etc/passwd")
    assert_rejected(archive, "set/link")


@every_kind
def test_a_truncated_archive_is_rejected(tmp_path: Path, kind: str):
    archive = MAKERS[kind](tmp_path / kind, {"set/a": bytes(range(256)) * 3})
    archive.write_bytes(archive.read_bytes()[: 700 if kind == "a.tar" else 60])
    assert_rejected(archive, "damaged")


@every_kind
def test_another_file_type_is_rejected(tmp_path: Path, kind: str):
    (tmp_path / kind).write_bytes(b"<html>Not found</html>" * 100)
    assert_rejected(tmp_path / kind, "damaged")


@every_kind
def test_an_archive_of_another_folder_is_rejected(tmp_path: Path, kind: str):
    assert_rejected(MAKERS[kind](tmp_path / kind, {"other/a": b"a"}), "folder set")
