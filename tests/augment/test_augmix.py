"""AugMix: every operation equals PIL's on every pixel (tolerance zero); the whole equals a loop over samples."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor

from mixmo.augment.augmix import AUGMIX_UNIFORMS, OPERATIONS, augmix, operate


def pictures(h: int, w: int, channels: int) -> Tensor:
    """Noise, a smooth picture, few levels, one level with a spot, all black: uint8 (5, h, w, C)."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (h, w, channels), generator=generator)
    ramp = (torch.linspace(20, 200, h)[:, None] + torch.linspace(0, 55, w))[..., None].expand(-1, -1, channels)
    flat = torch.full((h, w, channels), 77)
    flat[: h // 4, : w // 3] = 30
    return torch.stack([noise, ramp.long(), noise // 64 * 64, flat, torch.zeros_like(flat)]).to(torch.uint8)


def pil(image: np.ndarray, name: str, sign: int, severity: float) -> np.ndarray:
    """One operation with PIL at the strengths of the authors' code."""
    picture = Image.fromarray(image.squeeze())
    level = severity / 30
    match name:
        case "equalize":
            picture = ImageOps.equalize(picture)
        case "posterize":
            picture = ImageOps.posterize(picture, int(4 + 4 * level))
        case "solarize":
            picture = ImageOps.solarize(picture, 256 * level)
        case "invert":
            picture = ImageOps.invert(picture)
        case "rotate":
            picture = picture.rotate(sign * 30 * level)
        case "shear_x":
            picture = picture.transform(picture.size, Image.Transform.AFFINE, (1, sign * 0.3 * level, 0, 0, 1, 0))
        case "shear_y":
            picture = picture.transform(picture.size, Image.Transform.AFFINE, (1, 0, 0, sign * 0.3 * level, 1, 0))
        case "translate_x":
            shift = sign * 0.45 * level * picture.size[0]
            picture = picture.transform(picture.size, Image.Transform.AFFINE, (1, 0, shift, 0, 1, 0))
        case "translate_y":
            shift = sign * 0.45 * level * picture.size[1]
            picture = picture.transform(picture.size, Image.Transform.AFFINE, (1, 0, 0, 0, 1, shift))
        case _:
            assert name == "identity"
    return np.asarray(picture).reshape(image.shape)


@pytest.mark.parametrize("shape", [(32, 32, 3), (8, 8, 1), (20, 33, 3), (64, 64, 3)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_equals_pil(name: str, shape: tuple[int, int, int]) -> None:
    images = pictures(*shape)
    for sign in (1, -1):
        for severity in (1.0, 3.0, 10.0):
            code = torch.full((len(images), 1), OPERATIONS.index(name))
            got = operate(images, code, torch.full_like(code, sign), severity)
            expected = np.stack([pil(image, name, sign, severity) for image in images.numpy()])
            assert got.dtype == torch.uint8
            assert np.array_equal(got.numpy(), expected), (sign, severity)


def test_images_of_a_batch_have_their_own_operations() -> None:
    """Every image has its own chain of operations, in the right order."""
    generator = torch.Generator().manual_seed(1)
    images = pictures(32, 32, 3).repeat(20, 1, 1, 1)
    operation = torch.randint(0, len(OPERATIONS), (100, 4), generator=generator)
    sign = torch.randint(0, 2, (100, 4), generator=generator) * 2 - 1
    got = operate(images, operation, sign).numpy()
    for i in range(100):
        image = images[i].numpy()
        for code, s in zip(operation[i].tolist(), sign[i].tolist(), strict=True):
            image = pil(image, OPERATIONS[code], s, 3.0)
        assert np.array_equal(got[i], image)


def loop(image: np.ndarray, u: list[float]) -> np.ndarray:
    """AugMix of one image, with PIL."""
    m, rest = u[0], u[1:]
    chains = [rest[i : i + 10] for i in range(0, 30, 10)]
    weights = np.array([-np.log(1 - chain[0]) for chain in chains])  # normalised exponentials are Dirichlet(1, 1, 1)
    mixture = np.zeros(image.shape)
    for weight, chain in zip(weights / weights.sum(), chains, strict=True):
        augmented = image
        for step in range(1 + int(4 * chain[1])):
            sign = 1 if chain[6 + step] < 0.5 else -1
            augmented = pil(augmented, OPERATIONS[int(10 * chain[2 + step])], sign, 3.0)
        mixture += weight * augmented
    return (1 - m) * image + m * mixture


@pytest.mark.parametrize("shape", [(32, 32, 3), (8, 8, 1)])
def test_equals_a_loop_with_pil(shape: tuple[int, int, int]) -> None:
    images = pictures(*shape).repeat(8, 1, 1, 1)
    u = torch.rand(40, AUGMIX_UNIFORMS, generator=torch.Generator().manual_seed(2))
    got = augmix(images, u)
    assert got.dtype == torch.float32
    for i in range(40):
        np.testing.assert_allclose(got[i].numpy(), loop(images[i].numpy(), u[i].tolist()), atol=1e-3)


def test_weights_are_convex_and_extremes_are_finite() -> None:
    images = pictures(16, 16, 3)
    for value in (0.0, 0.5, 1 - 2**-24):
        got = augmix(images, torch.full((5, AUGMIX_UNIFORMS), value))
        assert (got >= -1e-3).all()
        assert (got <= 255.001).all()
    still = torch.rand(5, AUGMIX_UNIFORMS)
    still[:, 0] = 0  # m = 0
    assert torch.equal(augmix(images, still), images.float())


def test_copies_share_their_operations() -> None:
    """Under batch repetition the caller gives the copies of a sample the same numbers."""
    images = pictures(32, 32, 3)[:1].repeat(2, 1, 1, 1)
    u = torch.rand(1, AUGMIX_UNIFORMS).repeat(2, 1)
    first, second = augmix(images, u)
    assert torch.equal(first, second)


def test_no_host_sync_and_compiles() -> None:
    images, u = pictures(16, 16, 3), torch.rand(5, AUGMIX_UNIFORMS, generator=torch.Generator().manual_seed(3))
    assert augmix(images.to("meta"), u.to("meta")).shape == images.shape
    compiled = torch.compile(augmix, fullgraph=True, backend="eager")
    assert torch.equal(compiled(images, u), augmix(images, u))
