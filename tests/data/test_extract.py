import io
import random
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

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
            file.mkdir(name) if name.endswith("/") else file.writestr(name, content)
    return path


MAKERS: dict[str, Callable[[Path, Members], Path]] = {
    "a.tar": tar,
    "a.tar.gz": lambda path, members: tar(path, members, "w:gz"),
    "a.zip": zipped,
}
every_kind = pytest.mark.parametrize("kind", list(MAKERS))


def refused(archive: Path, problem: str, members: int = 10, size: int = 1000) -> None:
    """The sentence names archive and remedy, and nothing at all is left beside the archive."""
    with pytest.raises(UserError) as caught:
        unpack(archive, archive.parent / "set", members, size)
    assert str(archive) in str(caught.value)
    assert problem in str(caught.value)
    assert str(caught.value).endswith("; delete it and fetch it again")
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]


@every_kind
def test_progress_is_the_place_in_the_archive(tmp_path: Path, kind: str, works: list[Work]):
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
def test_unpacked(tmp_path: Path, kind: str, folders: Members):
    """Also where the archive names its folders, as the real ones do; exactly as much as is allowed."""
    unpack(MAKERS[kind](tmp_path / kind, folders | GOOD), tmp_path / "set", len(folders | GOOD), len(b"alphabeta"))
    assert (tmp_path / "set/a.txt").read_text() == "alpha"
    assert (tmp_path / "set/deep/b.txt").read_text() == "beta"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([kind, "set"])


def test_nobody_gets_rights_from_an_archive(tmp_path: Path):
    """Neither to run a file as its owner nor, where others have an account, to write to it."""
    entry = tarfile.TarInfo("set/a.txt")
    entry.mode = 0o6777
    with tarfile.open(tmp_path / "a.tar", "w") as file:
        file.addfile(entry)
    unpack(tmp_path / "a.tar", tmp_path / "set", 1, 0)
    assert (tmp_path / "set" / "a.txt").stat().st_mode & 0o6022 == 0


@every_kind
@pytest.mark.parametrize("name", ["../evil", "set/../../evil", "/tmp/mixmo-evil", "set\\..\\..\\evil", "C:\\evil"])
def test_path_traversal(tmp_path: Path, kind: str, name: str):
    inner = tmp_path / "inner"
    inner.mkdir()
    refused(MAKERS[kind](inner / kind, GOOD | {name: b"gotcha"}), "would leave the folder; ")
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
    assert not Path("/tmp/mixmo-evil").exists()


@every_kind
def test_bomb_of_bytes(tmp_path: Path, kind: str):
    """50 MB of zeros in few bytes: refused before they are written."""
    archive = MAKERS[kind](tmp_path / kind, GOOD | {"set/zeros": bytes(50_000_000)})
    refused(archive, "at 'set/zeros' it exceeds the 10 members and 1,000 bytes of the real one")


@every_kind
def test_bomb_of_members(tmp_path: Path, kind: str):
    archive = MAKERS[kind](tmp_path / kind, {f"set/{n}": b"" for n in range(11)})
    refused(archive, "at 'set/10' it exceeds the 10 members")


def test_a_zip_that_declares_less_than_it_holds(tmp_path: Path):
    archive = zipped(tmp_path / "a.zip", {"set/zeros": bytes(5_000_000)})
    content = archive.read_bytes().replace(struct.pack("<I", 5_000_000), struct.pack("<I", 500))
    archive.write_bytes(content)
    refused(archive, "is damaged")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_in_a_tar(tmp_path: Path, kind: bytes):
    archive = tar(tmp_path / "a.tar", GOOD)
    with tarfile.open(archive, "a") as file:
        entry = tarfile.TarInfo("set/link")
        entry.type, entry.linkname = kind, "a.txt"
        file.addfile(entry)
    refused(archive, "'set/link' is neither a file nor a folder")


def test_links_in_a_zip(tmp_path: Path):
    archive = zipped(tmp_path / "a.zip", GOOD)
    with zipfile.ZipFile(archive, "a") as file:
        entry = zipfile.ZipInfo("set/link")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(entry, "/etc/passwd")
    refused(archive, "'set/link' is neither a file nor a folder")


@every_kind
def test_truncated(tmp_path: Path, kind: str):
    archive = MAKERS[kind](tmp_path / kind, {"set/a": bytes(range(256)) * 3})
    archive.write_bytes(archive.read_bytes()[: 700 if kind == "a.tar" else 60])
    refused(archive, "is damaged")


@every_kind
def test_not_an_archive(tmp_path: Path, kind: str):
    (tmp_path / kind).write_bytes(b"<html>Not found</html>" * 100)
    refused(tmp_path / kind, "is damaged")


@every_kind
def test_another_folder_inside(tmp_path: Path, kind: str):
    refused(MAKERS[kind](tmp_path / kind, {"other/a": b"a"}), "does not hold the folder set")
