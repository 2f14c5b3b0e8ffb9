"""The one schema of an experiment. Names are the paper's where it has one."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from mixmo.augment.pixel import AUGMENTATIONS
from mixmo.baselines.feature_mixing import FEATURE_MIXING
from mixmo.baselines.saliency import SALIENCY
from mixmo.baselines.saliency.comixup import part_size
from mixmo.mixing.mixer import Mixer
from mixmo.models import FAMILIES, Network, create
from mixmo.utils.errors import UserError, unknown

Precision = Literal["fp32", "bf16"]
Course = Literal["step", "cosine"]
MOST_NETWORKS = 1000  # a hundred times what has been trained
MOST = 1e6  # of a Dirichlet's or Beta's parameter


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the outcome of a training. Defaults: Cut-MixMo, WRN-28-10, CIFAR-100, b = 2."""

    dataset: str = "cifar100"
    """Data set (`mixmo list datasets`)."""
    val: float = 0.0
    """Share of each class held out as the test set, the same for every seed; for folders without val/ and test/."""
    validation: int = 0
    """Training images held out, at random, to choose the best epoch by; 0: by the test set, as the paper did."""

    model: str = "wrn"
    """Family of the network (`mixmo list models`)."""
    depth: int = 28
    """Depth d of the network."""
    width: int = 10
    """Width factor w."""
    members: int = 2
    """Subnetworks M, inputs mixed at once; 1 is an ordinary network."""
    encoders: int | None = None
    """First convolutions: one each a member, or 1 for all."""
    heads: int | None = None
    """Classifiers: one each a member, or 1 for all."""

    start: str | None = None
    """Trained network to begin with: run directory, saved folder, shipped or Hub's name; else random weights."""

    networks: int = 1
    """Independent networks with consecutive seeds, evaluated as one ensemble."""

    mask: str = "cut"
    """Mixing block: a mask (`mixmo list masks`), linear, sum (MIMO) or concat (Aggregated Learning)."""
    alpha: float = 2.0
    """Mixing ratios kappa ~ Dirichlet(alpha)."""
    p: float = 0.5
    """Probability of the mask rather than linear mixing; falls to 0 over the last twelfth of training."""
    r: float = 3.0
    """Root of the loss weights w_r; 1 weights by kappa, .inf not at all."""
    association: str = "own"
    """Which head answers for which input: own, random, predominant, interpolated (ablation)."""
    rho: float = 0.0
    """MIMO's input repetition: share of samples that show one image, cropped alike, to all members."""

    size: int | None = None
    """Side in pixels of what the network sees of an image: a random crop, the centre at test time; by default all."""
    crop: int = 4
    """Padding of the random crop, in pixels; 0 for none."""
    crop_scale: float = 1.0
    """Below 1, the crop is a part of the image of at least this share of its area, resized, as usual on ImageNet."""
    flip: bool = True
    """Random horizontal flip."""

    augmix: bool = False
    """AugMix: chains of random operations on the pixels, mixed with the image."""
    pixel: str = "none"
    """Pixel augmentation that mixes in another image (`mixmo list augmentations`), alone or under MixMo."""
    pixel_p: float = 0.5
    """Its probability, per member and sample."""
    pixel_alpha: float = 1.0
    """Its mixing ratio lambda ~ Beta(pixel_alpha, pixel_alpha)."""
    hidden: str = "none"
    """Feature mixing of a single network: manifold-mixup or patchup, with lambda ~ Beta(alpha, alpha)."""

    saliency: str = "none"
    """Mixing of a single network's images by what it looks at: puzzle-mix or co-mixup, lambda ~ Dirichlet(alpha)."""
    clean: float = 0.0
    """With saliency: weight of the loss on the unmixed images, which otherwise only show what is salient."""
    transport: int = 0
    """With puzzle-mix: side in pixels of the squares that move; 0 moves whole blocks of the mask."""

    subnets: int = 0
    """GradAug: narrower sub-networks of a single network that learn its answers; 3 as published, 0 for none."""

    batch_size: int = 64
    """Images an optimisation step reads by each member."""
    ghost: int = 0
    """Images a ghost batch: a step pairs, mixes and normalises that many at a time, as if apart; 0: all of them."""
    repetition: int = 2
    """Batch repetition b: each image b times a batch, learning rate divided by b, steps multiplied by b."""
    epochs: int = 300
    """Passes over the training set."""
    lr: float = 0.1
    """Learning rate for 128 images a step; the one used is lr / b * batch_size / 128."""
    momentum: float = 0.9
    """Nesterov momentum of SGD."""
    weight_decay: float = 6e-4
    """On all parameters. 6e-4 is the paper's l2 regularisation 3e-4: its code adds 3e-4 |w|^2 to the loss."""
    warmup: float = 1.0
    """Epochs of linear warm-up."""
    schedule: Course = "step"
    """Learning rate after the warm-up."""
    decay: tuple[float, ...] = (1 / 3, 2 / 3, 3 / 4)
    """When the learning rate steps down, in shares of the epochs."""
    decay_rate: float = 0.1
    """By which factor it steps down."""
    average: float = 0.0
    """Epochs over which the weights are averaged, exponentially, for scoring; 0 scores the last ones."""

    precision: Precision = "fp32"
    """Arithmetic of the network; weights are float32 in both."""
    seed: int = 0
    """Seed of the initial weights and of every draw."""

    def __post_init__(self) -> None:
        self._check_types()
        self._check_names()
        self._check_numbers()
        self._check_batches()
        self._check_members()
        self.mixer()

    def _check_types(self) -> None:
        for name, kind in KINDS.items():
            value = getattr(self, name)
            if not fits(value, kind):
                wanted = kind.__name__ if isinstance(kind, type) else kind
                raise UserError(f"{name} = {value!r} is of another type than {wanted}; give a value of that type")

    def _check_names(self) -> None:
        for field, kind, known in (
            ("model", "model family", FAMILIES),
            ("precision", "precision", get_args(Precision)),
            ("schedule", "schedule", get_args(Course)),
            ("pixel", "pixel augmentation", ("none", *AUGMENTATIONS)),
            ("hidden", "feature mixing", ("none", *FEATURE_MIXING)),
            ("saliency", "saliency method", ("none", *SALIENCY)),
        ):
            if getattr(self, field) not in known:
                raise unknown(kind, getattr(self, field), known)

    def _check_numbers(self) -> None:
        for name in FIELDS:
            value = getattr(self, name)
            if isinstance(value, float) and math.isnan(value):
                raise UserError(f"{name} is not a number; give a value")
        for name in ("members", "width", "batch_size", "repetition", "epochs", "networks"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}; it must be at least 1")
        counts = ("validation", "crop", "seed", "subnets", "transport", "ghost")
        for name in (*counts, "warmup", "weight_decay", "momentum", "clean", "average"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"{name} = {getattr(self, name)}; it cannot be negative or infinite")
        if self.networks > MOST_NETWORKS:
            raise UserError(f"networks = {self.networks}; take at most {MOST_NETWORKS}")
        if self.validation == 1:
            raise UserError("validation = 1; hold out 2 or more: NLLc fits a temperature to one half, scores the other")
        if self.momentum >= 1:
            raise UserError(f"momentum = {self.momentum}; past steps would never fade, take less than 1")
        for name in ("alpha", "pixel_alpha"):
            if getattr(self, name) > MOST:
                raise UserError(
                    f"{name} = {getattr(self, name)}; all ratios are alike well below, take at most {MOST:g}"
                )
        if not self.pixel_alpha > 0:
            raise UserError(f"pixel_alpha = {self.pixel_alpha}; the Beta distribution of lambda needs pixel_alpha > 0")
        for name in ("rho", "pixel_p"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} = {getattr(self, name)} is no probability; take one from 0 to 1")
        if not 0 < self.decay_rate < math.inf:
            raise UserError(
                f"decay_rate = {self.decay_rate}; the learning rate is multiplied by it: above 0, and finite"
            )
        if not 0 <= self.val < 1:
            raise UserError(f"val = {self.val}; give a share of the images from 0 up to, but not including, 1")
        if not 0 < self.lr < math.inf:
            raise UserError(f"lr = {self.lr}; the learning rate must be positive and finite")
        if any(not 0 < share <= 1 for share in self.decay):
            raise UserError(f"decay = {self.decay}; give shares of the epochs between 0 and 1")

    def _check_batches(self) -> None:
        if self.size is not None and self.size < 1:
            raise UserError(f"size = {self.size}; the network must see at least 1 pixel")
        if not 0 < self.crop_scale <= 1:
            raise UserError(f"crop_scale = {self.crop_scale} is no share of the area; take one above 0, up to 1")
        if self.batch_size % self.repetition:
            raise UserError(
                f"repetition b = {self.repetition} does not divide batch_size = {self.batch_size}; "
                f"take a batch_size that is a multiple of b"
            )
        if self.ghost and (self.batch_size % self.ghost or self.ghost % self.repetition):
            raise UserError(
                f"ghost = {self.ghost} with batch_size = {self.batch_size} and repetition b = {self.repetition}; "
                f"take a divisor of batch_size that is a multiple of b"
            )
        if self.saliency != "none" and self.hidden != "none":
            raise UserError(f"saliency = {self.saliency} and hidden = {self.hidden} both mix a batch; take one of them")
        if self.saliency == "co-mixup" and part_size(self.batch_size) < 3:
            raise UserError(
                f"batch_size = {self.batch_size} cannot be cut into equal parts of 3 to 20 images, as co-mixup needs; "
                f"take another batch_size"
            )

    def _check_members(self) -> None:
        if self.hidden != "none" and self.members > 1:
            raise UserError(f"hidden = {self.hidden} mixes the features of single networks; set members = 1")
        if self.subnets and self.members > 1:
            raise UserError(f"subnets = {self.subnets}: GradAug regularises single networks; set members = 1")
        if self.saliency != "none" and self.members > 1:
            raise UserError(f"saliency = {self.saliency} mixes the images of single networks; set members = 1")
        for what in ("encoders", "heads"):
            if getattr(self, what) not in (None, 1, self.members):
                raise UserError(f"{what} = {getattr(self, what)}; take 1, or one each of the {self.members} members")
        if (self.association == "interpolated") != (self.members > 1 and self.heads == 1):
            raise UserError(
                f"heads = {self.heads} with association = {self.association}; one head for several members learns "
                f"interpolated labels: set heads = 1 and association = interpolated together"
            )

    @property
    def stride(self) -> int:
        """Of the encoders."""
        return FAMILIES[self.model](self.depth, self.width).stride

    def seen(self, size: tuple[int, int, int]) -> tuple[int, int, int]:
        """What the network sees of images of this size; both (C, H, W)."""
        return size if self.size is None else (size[0], self.size, self.size)

    @property
    def ghosts(self) -> int:
        """Batches that a step works on as if they were apart; only their gradients meet."""
        return self.batch_size // self.ghost if self.ghost else 1

    @property
    def rate(self) -> float:
        """The learning rate after the warm-up."""
        return self.lr / self.repetition * self.batch_size / 128

    @property
    def architecture(self) -> str:
        return f"{self.model}{self.depth}_{self.width}"

    def mixer(self) -> Mixer:
        """How its batches are mixed: masks are drawn at the resolution of what the encoders give."""
        return Mixer(self.mask, self.members, self.alpha, self.p, self.r, self.stride, self.association)

    def network(self, classes: int, channels: int = 3) -> Network:
        """A fresh network from the global random generator of torch."""
        return create(
            self.architecture,
            classes,
            self.members,
            encoders=self.encoders,
            heads=self.heads,
            concat=self.mask == "concat",
            channels=channels,
        )

    def to_dict(self) -> dict[str, Any]:
        """Every field, as YAML and JSON can hold it."""
        fields = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}

    def replace(self, **changes: Any) -> "Recipe":
        """Another recipe that differs in these fields; an unknown one is refused, naming the nearest valid one."""
        for name in changes:
            if name not in FIELDS:
                raise unknown("field", name, FIELDS)
        return dataclasses.replace(self, **changes)


def fits(value: object, kind: Any) -> bool:
    """Whether a value is of the type of a field. Whole numbers are numbers too; True and False are not.

    >>> fits(1, float), fits(True, int), fits(None, int | None), fits((0.5, 1), tuple[float, ...])
    (True, False, True, True)
    """
    parts = get_args(kind)
    if get_origin(kind) is Literal:
        return type(value) is str  # which one is another question
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(fits(part, parts[0]) for part in value)
    if parts:
        return any(fits(value, part) for part in parts)
    return type(value) in ((int, float) if kind is float else (kind,))  # of no other: YAML does not know NumPy's


KINDS = get_type_hints(Recipe)
FIELDS = tuple(KINDS)
