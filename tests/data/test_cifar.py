import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from mixmo.data import cifar, load
from mixmo.utils.errors import UserError

# The same layouts with few images, so that a test can write them.
CLASSES = {"cifar10": 10, "cifar100": 100}
SMALL10 = cifar.CIFAR10._replace(train_images=50, test_images=10, contents={})
SMALL100 = cifar.CIFAR100._replace(train_images=200, test_images=100, contents={})


def write(root: Path, layout: cifar.Layout, keys: type = bytes) -> Path:
    """A CIFAR folder of random images, the labels in turn; keys and names as bytes, as in the originals, or as str."""
    word = (lambda name: name.encode()) if keys is bytes else str
    draw = np.random.default_rng(0)
    folder = root / layout.folder
    folder.mkdir(parents=True)
    for names, count in ((layout.train, layout.train_images), (layout.test, layout.test_images)):
        each = count // len(names)
        for name in names:
            data = draw.integers(256, size=(each, 3072), dtype=np.uint8)
            labels = [int(i) % CLASSES[layout.name] for i in range(each)]
            dump(folder / name, {word("data"): data, word(layout.label_key): labels, word("batch_label"): word(name)})
    names = [word(f"class {i}") for i in range(CLASSES[layout.name])]
    dump(folder / next(iter(layout.meta)), {word(layout.class_key): names})
    return folder


def dump(path: Path, thing: object) -> None:
    path.write_bytes(pickle.dumps(thing, protocol=2))


@pytest.mark.parametrize("layout", [SMALL10, SMALL100])
@pytest.mark.parametrize("keys", [bytes, str])
def test_pixels_are_those_of_a_plain_loop(tmp_path: Path, layout: cifar.Layout, keys: type):
    folder = write(tmp_path, layout, keys)
    dataset = cifar.read(tmp_path, layout)
    assert dataset.classes == tuple(f"class {i}" for i in range(CLASSES[layout.name]))
    assert dataset.mean == pytest.approx((0.4914, 0.482158, 0.446531), abs=2e-4)  # that of CIFAR-10, for both
    assert dataset.std == (0.2023, 0.1994, 0.2010)
    for split, names in ((dataset.train, layout.train), (dataset.test, layout.test)):
        batches = [pickle.loads((folder / name).read_bytes()) for name in names]
        rows = np.concatenate([batch[b"data" if keys is bytes else "data"] for batch in batches])
        assert split.images.shape == (len(rows), 32, 32, 3)
        assert split.images.is_contiguous()
        for n in (0, 7, len(rows) - 1):
            for c, y, x in ((0, 0, 0), (1, 3, 30), (2, 31, 5)):
                assert split.images[n, y, x, c] == rows[n][c * 1024 + y * 32 + x]
        assert split.labels.tolist() == [
            i % CLASSES[layout.name] for _ in batches for i in range(len(rows) // len(batches))
        ]


@pytest.mark.parametrize("layout", [SMALL10, SMALL100])
def test_train_false_does_not_need_the_training_files(
    tmp_path: Path, layout: cifar.Layout, monkeypatch: pytest.MonkeyPatch
):
    folder = write(tmp_path, layout)
    whole = cifar.read(tmp_path, layout)
    for name in layout.train:
        (folder / name).unlink()
    monkeypatch.setattr(cifar, layout.name.upper(), layout)
    dataset = load(layout.name, tmp_path, train=False)
    assert torch.equal(dataset.test.images, whole.test.images)
    assert torch.equal(dataset.test.labels, whole.test.labels)
    assert dataset.classes == whole.classes
    assert len(dataset.train.labels) == 0
    with pytest.raises(UserError, match="missing"):
        load(layout.name, tmp_path)


def test_labels_may_be_an_array(tmp_path: Path):
    folder = write(tmp_path, SMALL10)
    dump(folder / "test_batch", {"data": np.zeros((10, 3072), np.uint8), "labels": np.arange(10)})
    assert cifar.read(tmp_path, SMALL10).test.labels.tolist() == list(range(10))


PIXELS = np.zeros((10, 3072), np.uint8)
LABELS = list(range(10))


@pytest.mark.parametrize(
    ("name", "contents"),
    [
        ("data_batch_2", {"labels": LABELS}),
        ("data_batch_2", {"data": PIXELS[:9], "labels": LABELS}),
        ("data_batch_2", {"data": PIXELS[:, :3071], "labels": LABELS}),
        ("test_batch", {"data": PIXELS}),
        ("test_batch", {"data": PIXELS, "labels": LABELS[:9]}),
    ],
)
def test_another_number_of_images_or_labels_is_an_error(tmp_path: Path, name: str, contents: dict[str, object]):
    folder = write(tmp_path, SMALL10)
    dump(folder / name, contents)
    assert_rejected(tmp_path, folder / name, "does not hold 10 images")


@pytest.mark.parametrize("name", ["data_batch_1", "test_batch", "batches.meta"])
def test_a_missing_file_is_named(tmp_path: Path, name: str):
    folder = write(tmp_path, SMALL10)
    (folder / name).unlink()
    assert_rejected(tmp_path, folder / name, "missing")


def test_a_truncated_file_is_named(tmp_path: Path):
    folder = write(tmp_path, SMALL10)
    content = (folder / "data_batch_3").read_bytes()
    (folder / "data_batch_3").write_bytes(content[: len(content) // 2])
    assert_rejected(tmp_path, folder / "data_batch_3", "truncated")


def test_other_pixels_labels_or_class_names_are_rejected_by_their_checksum(tmp_path: Path):
    """The same contents pickled anew, and the original file, are accepted."""
    folder = write(tmp_path, SMALL10)
    digests: dict[str, str] = {}
    for name in ("data_batch_2", "test_batch"):
        batch = pickle.loads((folder / name).read_bytes())
        labels = np.array(batch[b"labels"], np.uint8)
        digests[name] = hashlib.sha256(batch[b"data"].tobytes() + labels.tobytes()).hexdigest()
    digests["batches.meta"] = hashlib.sha256("\n".join(f"class {i}" for i in range(10)).encode()).hexdigest()
    layout = SMALL10._replace(contents=digests)
    cifar.read(tmp_path, layout)
    changes = {
        "data_batch_2": lambda batch: batch[b"data"].__setitem__((3, 77), batch[b"data"][3, 77] ^ 1),
        "test_batch": lambda batch: batch[b"labels"].__setitem__(slice(0, 2), batch[b"labels"][1::-1]),
        "batches.meta": lambda batch: batch[b"label_names"].__setitem__(0, b"cat"),
    }
    for name, change in changes.items():
        original = (folder / name).read_bytes()
        batch = pickle.loads(original)
        (folder / name).write_bytes(pickle.dumps(batch, protocol=4))  # other bytes, the same contents
        cifar.read(tmp_path, layout)
        change(batch)
        dump(folder / name, batch)
        with pytest.raises(UserError, match=f"{name} .* checksum"):
            cifar.read(tmp_path, layout)
        altered = hashlib.md5((folder / name).read_bytes()).hexdigest()
        part = next(p for p in ("train", "test", "meta") if name in getattr(layout, p))
        cifar.read(tmp_path, layout._replace(**{part: {**getattr(layout, part), name: altered}}))
        (folder / name).write_bytes(original)


def test_a_pickle_that_runs_code_is_rejected(tmp_path: Path):
    folder = write(tmp_path, SMALL10)
    (folder / "data_batch_1").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    assert_rejected(tmp_path, folder / "data_batch_1", "os.system")


def assert_rejected(root: Path, path: Path, problem: str) -> None:
    with pytest.raises(UserError, match=problem) as caught:
        cifar.read(root, SMALL10)
    assert str(path) in str(caught.value)
    assert f"`mixmo data get cifar10 --to {root}`" in str(caught.value)


def facts(dataset: object, each: int) -> None:
    train, test = dataset.train, dataset.test
    assert train.images.shape == (50_000, 32, 32, 3)
    assert test.images.shape == (10_000, 32, 32, 3)
    assert torch.bincount(train.labels).tolist() == [each] * (50_000 // each)
    assert torch.bincount(test.labels).tolist() == [each // 5] * (50_000 // each)


def moments(images: torch.Tensor) -> tuple[list[float], list[float]]:
    """Means and standard deviations per channel, from the exact histogram of its 256 values."""
    values = np.arange(256) / 255
    shares = [np.bincount(images[..., c].numpy().ravel(), minlength=256) / images[..., c].numel() for c in range(3)]
    means = [float(share @ values) for share in shares]
    deviations = [float(share @ (values - mean) ** 2) ** 0.5 for share, mean in zip(shares, means, strict=True)]
    return [round(mean, 6) for mean in means], [round(deviation, 6) for deviation in deviations]


def test_cifar100_has_its_published_statistics(cifar100_root: Path):
    dataset = load("cifar100", cifar100_root)
    facts(dataset, 500)
    assert moments(dataset.train.images) == ([0.507075, 0.486549, 0.440918], [0.267334, 0.256438, 0.276150])
    assert (dataset.classes[0], dataset.classes[99]) == ("apple", "worm")
    train, test = ({image.tobytes() for image in split.images.numpy()} for split in (dataset.train, dataset.test))
    assert len(train & test) == 10
    for name, md5 in cifar.CIFAR100.md5.items():
        assert hashlib.md5((cifar100_root / cifar.CIFAR100.folder / name).read_bytes()).hexdigest() == md5


def test_cifar10_has_its_published_statistics(real_root: Path):
    if not (real_root / cifar.CIFAR10.folder).is_dir():
        pytest.skip(f"no CIFAR-10 in {real_root}")
    dataset = load("cifar10", real_root)
    facts(dataset, 5000)
    assert moments(dataset.train.images) == ([0.4914, 0.482158, 0.446531], [0.247032, 0.243485, 0.261588])
    assert dataset.classes[:2] == ("airplane", "automobile")
    single = dataset.train.images.reshape(50_000, -1, 3).float().div(255).std(1).mean(0)
    assert torch.allclose(single, torch.tensor(dataset.std), atol=1e-4)  # what the customary "std" really is
