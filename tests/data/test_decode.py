import os
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, ExifTags, Image, ImageOps, UnidentifiedImageError

from helpers import limited
from mixmo.data.decode import Sample, SkippedImages, TooLargeError, decode, decode_all, default_workers, report
from mixmo.utils.errors import UserError
from mixmo.utils.progress import Work, shown

RED = (200, 30, 40)


def test_resize_of_the_shorter_side_and_centre_crop(tmp_path: Path):
    """A 300x100 image of three squares at size 20 is its middle square."""
    image = np.zeros((100, 300, 3), np.uint8)
    image[:, 100:200] = RED
    path = tmp_path / "a.png"
    for turned in (image, image.transpose(1, 0, 2)):
        Image.fromarray(np.ascontiguousarray(turned)).save(path)
        decoded = decode(str(path), 20)
        assert decoded.shape == (20, 20, 3)
        assert np.abs(decoded[2:-2, 2:-2].astype(int) - RED).max() == 0


@pytest.mark.parametrize("shape", [(150, 200), (200, 151), (40, 61), (33, 47), (64, 90), (300, 200)])
def test_decoding_equals_torchvision(tmp_path: Path, shape: tuple[int, int]):
    transforms = pytest.importorskip("torchvision.transforms")
    path = tmp_path / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(256, size=(*shape, 3), dtype=np.uint8)).save(path)
    for size in (32, 56):
        theirs = transforms.Compose([transforms.Resize(size), transforms.CenterCrop(size)])(Image.open(path))
        assert np.array_equal(decode(str(path), size), np.asarray(theirs))


@pytest.mark.parametrize("shape", [(8, 8), (7, 9), (1, 40), (33, 2), (400, 333)])
def test_any_shape_gives_the_size(tmp_path: Path, shape: tuple[int, int]):
    path = tmp_path / "a.png"
    Image.fromarray(np.full((*shape, 3), 99, np.uint8)).save(path)
    assert (decode(str(path), 8) == np.full((8, 8, 3), 99)).all()


@pytest.mark.parametrize("shape", [(1, 20_000), (20_000, 1)])
def test_a_thin_image_takes_little_memory(tmp_path: Path, shape: tuple[int, int]):
    """Resized whole, its shorter side to 64 pixels, it would take 250 MB."""
    pixels = np.zeros((*shape, 3), np.uint8)
    pixels.reshape(-1, 3)[9_990:10_010] = RED
    path = tmp_path / "a.png"
    Image.fromarray(pixels).save(path)
    largest = []
    resize = Image.Image.resize

    def watched(image: Image.Image, size: tuple[int, int], *arguments: object) -> Image.Image:
        largest.append(size[0] * size[1])
        return resize(image, size, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image.Image, "resize", watched)
        assert (decode(str(path), 64) == RED).all()
    assert max(largest) <= 16 * 64**2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_an_error(tmp_path: Path):
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(ValueError, match="a pipe"):
        decode(str(tmp_path / "a.png"), 8)


def test_an_image_of_the_right_size_is_not_resized(tmp_path: Path):
    """As PIL alone decodes it, JPEG included."""
    pixels = np.random.default_rng(0).integers(256, size=(64, 64, 3), dtype=np.uint8)
    path = tmp_path / "a.jpg"
    Image.fromarray(pixels).save(path, quality=90)
    assert np.array_equal(decode(str(path), 64), np.asarray(Image.open(path)))


def test_a_large_jpeg_is_close_to_a_full_decode(tmp_path: Path):
    y, x = np.mgrid[:800, :800]
    pixels = np.stack([x % 256, y % 256, (x + y) // 8], -1).astype(np.uint8)
    path = tmp_path / "a.jpg"
    Image.fromarray(pixels).save(path, quality=95)
    full = np.asarray(Image.open(path).resize((32, 32), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(decode(str(path), 32) - full).mean() < 2


@pytest.mark.parametrize("shape", [(256, 256), (256, 512), (512, 256)])
def test_a_large_jpeg_is_decoded_at_a_fraction(tmp_path: Path, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch):
    """Its shorter side to twice the size: more takes longer, less would be blurred."""
    path = tmp_path / "a.jpg"
    Image.new("RGB", shape, RED).save(path, quality=95)
    sides, resize = list[int](), Image.Image.resize
    monkeypatch.setattr(Image.Image, "resize", lambda image, *to: sides.append(min(image.size)) or resize(image, *to))
    assert np.abs(decode(str(path), 32).astype(int) - RED).max() <= 4
    assert sides == [64]


@pytest.mark.parametrize(
    ("mode", "extension", "colour", "expected"),
    [
        ("L", "png", 70, (70, 70, 70)),
        ("L", "jpg", 70, (70, 70, 70)),
        ("1", "png", 1, (255, 255, 255)),
        ("LA", "png", (70, 10), (70, 70, 70)),
        ("RGBA", "png", (*RED, 128), RED),
        ("CMYK", "jpg", (0, 255, 255, 0), (255, 0, 0)),
        ("CMYK", "tif", (0, 255, 255, 0), (255, 0, 0)),
        ("I;16", "png", 70 * 257, (70, 70, 70)),
        ("I;16", "pgm", 70 * 257, (70, 70, 70)),
        ("I;16B", "tif", 70 * 257, (70, 70, 70)),
        ("L", "pgm", 70, (70, 70, 70)),
        ("RGB", "bmp", RED, RED),
        ("RGB", "webp", (0, 0, 0), (0, 0, 0)),
    ],
)
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str, extension: str, colour: object, expected: tuple[int, ...]):
    path = tmp_path / f"a.{extension}"
    Image.new(mode, (16, 16), colour).save(path)
    assert np.abs(decode(str(path), 8).astype(int) - expected).max() <= 2


def test_palettes_with_and_without_transparency(tmp_path: Path):
    path = tmp_path / "a.png"
    image = Image.new("RGB", (8, 8), RED).convert("P", palette=Image.Palette.ADAPTIVE)
    for extra in ({}, {"transparency": b"\x10" * 4}, {"transparency": 0}):
        image.save(path, **extra)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert np.abs(decode(str(path), 8).astype(int) - RED).max() <= 2


@pytest.mark.parametrize("extension", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", range(9))
def test_the_exif_orientation_is_applied(tmp_path: Path, extension: str, orientation: int):
    """Quarters of four colours, as PIL turns the whole image; at a size that uses the JPEG draft mode."""
    colours = np.array([[[220, 30, 30], [30, 220, 30]], [[30, 30, 220], [220, 220, 220]]], np.uint8)
    image = Image.fromarray(colours.repeat(120, 0).repeat(160, 1))
    exif = image.getexif()
    exif[ExifTags.Base.Orientation] = orientation
    path = tmp_path / f"a.{extension}"
    image.save(path, exif=exif)
    with Image.open(path) as stored:
        upright = ImageOps.exif_transpose(stored).convert("RGB")
    assert upright.size == ((240, 320) if orientation >= 5 else (320, 240))
    side = min(upright.size)
    left, top = (upright.width - side) // 2, (upright.height - side) // 2
    expected = np.asarray(upright.crop((left, top, left + side, top + side)).resize((32, 32))).astype(int)
    decoded = decode(str(path), 32)
    for y, x in ((5, 5), (5, 26), (26, 5), (26, 26)):
        assert np.abs(decoded[y, x] - expected[y, x]).max() < 12


def test_damaged_metadata_do_not_make_an_image_unreadable(tmp_path: Path):
    path = tmp_path / "a.jpg"
    for exif in (b"Exif\0\0II*\0\xff\xff\xff\x7f", b"Exif\0\0nothing", b"Exif\0\0"):
        Image.new("RGB", (16, 16), RED).save(path, exif=exif, quality=95)
        assert np.abs(decode(str(path), 8).astype(int) - RED).max() <= 4


def bad_files(folder: Path) -> list[Path]:
    """A truncated JPEG, a truncated PNG, a text, an empty file, no file, a folder; 32-bit pixels (no known range)."""
    pixels = np.random.default_rng(0).integers(256, size=(64, 64, 3), dtype=np.uint8)
    for name in ("cut.jpg", "cut.png"):
        Image.fromarray(pixels).save(folder / name)
        (folder / name).write_bytes((folder / name).read_bytes()[:1500])
    (folder / "text.jpg").write_text("not an image")
    (folder / "empty.jpg").touch()
    (folder / "folder.jpg").mkdir()
    names = ["cut.jpg", "cut.png", "text.jpg", "empty.jpg", "absent.jpg", "folder.jpg"]
    for name, kind in (("float.tif", np.float32), ("whole.tif", np.int32)):
        Image.fromarray(np.zeros((8, 8), kind)).save(folder / name)
        names.append(name)
    return [folder / name for name in names]


def declared(width: int, height: int) -> bytes:
    """A PNG of a few bytes that declares so many pixels."""
    head = b"IHDR" + struct.pack(">II", width, height) + b"\x08\x02\0\0\0"
    chunks = (head, b"IDAT" + zlib.compress(bytes(100)), b"IEND")
    packed = (struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


@pytest.mark.parametrize(("side", "sentence"), [(9_000, "9000 x 9000 pixels, and 50,000,000"), (20_000, "50,000,000")])
def test_an_image_of_too_many_pixels_is_rejected_before_it_is_decoded(tmp_path: Path, side: int, sentence: str):
    path = tmp_path / "a.png"
    path.write_bytes(declared(side, side))
    with limited(0.2), warnings.catch_warnings(action="ignore"), pytest.raises(TooLargeError, match=sentence):
        decode(str(path), 32)


def test_only_the_listed_formats_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Pillow would hand an EPS, by whatever name, to Ghostscript."""
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_: pytest.fail("Ghostscript was called"))
    path = tmp_path / "a.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")
    with pytest.raises(UnidentifiedImageError):
        decode(str(path), 32)


def test_unreadable_files_are_skipped_and_named(tmp_path: Path):
    bad = bad_files(tmp_path)
    samples = []
    for index, path in enumerate(bad):
        good = tmp_path / f"good{index}.png"
        Image.new("RGB", (8, 8), (index, 0, 0)).save(good)
        samples += [Sample(str(path), "x"), Sample(str(good), "y")]
    decoded = decode_all(samples, 8, "my set")
    assert decoded.kept.tolist() == list(range(1, 2 * len(bad), 2))
    assert decoded.images[:, 3, 3, 0].tolist() == list(range(len(bad)))
    with pytest.warns(SkippedImages) as caught:
        report(samples, decoded.kept, "my set")
    assert len(caught) == 1
    message = str(caught[0].message)
    assert message.startswith("8 of the 16 images of my set cannot be read and are skipped: ")
    assert message.endswith(", ...")
    assert [str(path) in message for path in bad] == [True] * 5 + [False] * 3


def test_a_set_without_a_readable_image_is_an_error(tmp_path: Path):
    samples = [Sample(str(tmp_path / "absent.jpg"), "x")]
    with pytest.raises(UserError, match=r"absent\.jpg"):
        report(samples, decode_all(samples, 8, "my set").kept, "my set")


def test_a_readable_set_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report([Sample("a", "x")], np.arange(1), "my set")


def test_chunks_keep_their_order(tmp_path: Path, works: list[Work]):
    samples = []
    for value in range(256):
        Image.new("L", (4, 4), value).save(tmp_path / f"{value}.png")
        samples.append(Sample(str(tmp_path / f"{value}.png"), "x"))
    with shown():
        decoded = decode_all(samples * 3, 4, "my set")
    assert decoded.images[:, 0, 0, 1].tolist() == list(range(256)) * 3
    assert [(work.doing, work.done, work.total) for work in works] == [("decoding my set", 768, 768)]


def test_there_is_one_worker_per_core(monkeypatch: pytest.MonkeyPatch):
    """Of those that this process may use, where the system tells; at most 32."""
    for cores, workers in ((1, 1), (5, 5), (64, 32)):
        allowed = {0: set(range(cores))}  # by process; 0 is this one
        monkeypatch.setattr(os, "sched_getaffinity", allowed.__getitem__, raising=False)
        assert default_workers() == workers
    monkeypatch.delattr(os, "sched_getaffinity")
    for known, workers in ((3, 3), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda known=known: known)
        assert default_workers() == workers
