"""The recipe: one schema for every experiment. Fields have the paper's names where it has one."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_type_hints

from mixmo.augment.auto_augment import AUTO_AUGMENT
from mixmo.augment.pixel import AUGMENTATIONS
from mixmo.baselines.feature_mixing import FEATURE_MIXING
from mixmo.baselines.saliency import SALIENCY
from mixmo.baselines.saliency.comixup import part_size
from mixmo.mixing.mixer import Mixer
from mixmo.models import DEEPEST, FAMILIES, MOST_MEMBERS, Ensemble, create
from mixmo.recipes.fields import PROBABILITY, OneOf, Range, above, at_least, check_field
from mixmo.surgery.backbones import BACKBONES, FORMS, wrap_backbone
from mixmo.utils.errors import UserError, quoted, unknown

FAMILY_FIELDS = {"encoders": None, "heads": None, "feature_mixing": "none", "subnets": 0, "association": "own"}
BACKBONE_FIELDS = {"pretrained": False, "weights": None, "stem": None, "head": None, "drop_path": 0.0}
RENAMED = {"hidden": "feature_mixing"}  # fields by the names that earlier versions wrote


@dataclass(frozen=True)
class Recipe:
    """All settings that determine the result of a training run. Defaults: Cut-MixMo, WRN-28-10, CIFAR-100, b = 2.

    A recipe is immutable and valid: its constructor raises a UserError for a value of another type or out of the range
    declared with the field, and for fields that contradict each other.
    """

    dataset: str = "cifar100"
    """Data set (`mixmo list datasets`)."""
    val: Annotated[float, Range(0, 1, "[)")] = 0.0
    """Share of each class held out as the test set, the same for every seed; for folders without val/ and test/."""
    validation: Annotated[float, at_least(0)] = 0
    """Training images held out at random to select the best epoch, by Top1 and among equal ones by NLL: a number, or a
    share below 1; 0 selects it on the test set, as the paper did."""
    balance: Literal["none", "loss", "sampling"] = "none"
    """For classes of uneven size: weight the loss by inverse frequency, or sample all classes equally often."""

    model: Annotated[str, OneOf("model", FAMILIES, others=BACKBONES, forms=tuple(FORMS))] = "wrn"
    """Network family (`mixmo list models`), or a backbone: timm/NAME, torchvision/NAME or module:function."""
    depth: Annotated[int, Range(1, DEEPEST)] = 28
    """Depth d of the network, in layers; for network families only."""
    width: Annotated[int, Range(1, 10_000)] = 10
    """Width multiplier w of the network; for network families only."""
    pretrained: bool = False
    """Start from the published weights of the backbone; `weights` and `start` replace them. A function gets this as its
    argument `pretrained`, if it has one."""
    weights: str | None = None
    """File of pretrained weights of the backbone: safetensors, or a state dict of torch.save; `start` replaces them."""
    stem: str | None = None
    """Name of the backbone's first layer. By default it is found automatically."""
    head: str | None = None
    """Name of the backbone's last layer. By default it is found automatically."""
    drop_path: Annotated[float, Range(0, 1, "[)")] = 0.0
    """Drop path (stochastic depth) rate of the backbone."""
    members: Annotated[int, Range(1, MOST_MEMBERS)] = 2
    """Subnetworks M, each with its own input; 1 is a standard network."""
    encoders: int | None = None
    """Encoders (first convolutions): M, or 1 that all members share. By default M."""
    heads: int | None = None
    """Classifiers: M, or 1 that all members share. By default M."""

    start: str | None = None
    """Pretrained network to start from: run directory, saved folder, shipped name or Hub name. By default none."""
    diversity: Annotated[float, PROBABILITY] = 0.5
    """Initial diversity of members that start from one pretrained network: 0 (identical) to 1 (disjoint channels)."""
    teacher: str | None = None
    """Teacher for distillation, given in the same way as `start`; a run of several networks is one. By default none."""
    teacher_weight: Annotated[float, PROBABILITY] = 0.5
    """With a teacher: weight of its predictions in the targets."""

    networks: Annotated[int, Range(1, 1000)] = 1
    """Networks trained independently with consecutive seeds and evaluated as one ensemble."""

    mask: str = "cut"
    """Mixing block: a mask (`mixmo list masks`), linear, sum (MIMO) or concat (Aggregated Learning)."""
    alpha: float = 2.0
    """Concentration of the mixing ratios kappa ~ Dirichlet(alpha)."""
    p: float = 0.5
    """Probability of the mask instead of linear mixing, per batch; falls to 0 over the last twelfth of training."""
    r: float = 3.0
    """Root r of the loss weights w_r; 1 weights by kappa, .inf weights all inputs equally."""
    association: str = "own"
    """Input that each head is trained on: own, random, predominant or interpolated (ablation)."""
    rho: Annotated[float, PROBABILITY] = 0.0
    """Input repetition (MIMO): probability that all members get the same image with the same crop."""
    unmix: Literal["none", "mask", "fadeout"] = "none"
    """Unmixing: each head pools the last features under its own mask; fadeout changes to plain pooling by the end."""
    curriculum: Literal["none", "ratio", "repetition"] = "none"
    """Over the first half of training: mixing ratios start close to one image, or input repetition starts at 1."""

    size: Annotated[int | None, at_least(1)] = None
    """Side of the network's input, in pixels: a random crop in training, the center crop in testing; smaller images are
    enlarged. By default the whole image."""
    crop: Annotated[int, at_least(0)] = 4
    """Padding of the random crop, in pixels; 0 for no padding."""
    crop_scale: Annotated[float, Range(0, 1, "(]")] = 1.0
    """Smallest area of the random resized crop, as a fraction of the image; 1 crops without resizing."""
    flip: bool = True
    """Random horizontal flip."""
    color_jitter: Annotated[float, PROBABILITY] = 0.0
    """Color jitter: brightness, contrast and saturation change by factors of up to 1 +- this."""
    auto_augment: Annotated[str, OneOf("augmentation policy", AUTO_AUGMENT, none=True)] = "none"
    """Augmentation policy: trivialaugment or randaugment."""
    random_erase: Annotated[float, PROBABILITY] = 0.0
    """Random erasing: probability that a box of the image is erased."""

    augmix: bool = False
    """AugMix: chains of random image operations, mixed with the original image."""
    pixel: Annotated[str, OneOf("pixel augmentation", AUGMENTATIONS, none=True)] = "none"
    """Mixing augmentation in pixel space (`mixmo list augmentations`), alone or combined with MixMo."""
    pixel_p: Annotated[float, PROBABILITY] = 0.5
    """Probability of the pixel augmentation, per member and sample."""
    pixel_alpha: Annotated[float, above(0)] = 1.0
    """Mixing ratio of the pixel augmentation: lambda ~ Beta(pixel_alpha, pixel_alpha)."""
    feature_mixing: Annotated[str, OneOf("feature mixing", FEATURE_MIXING, none=True)] = "none"
    """Feature mixing of a single network: manifold-mixup or patchup, lambda ~ Beta(alpha, alpha)."""

    saliency: Annotated[str, OneOf("saliency method", SALIENCY, none=True)] = "none"
    """Saliency-guided mixing for a single network: puzzle-mix or co-mixup, lambda ~ Dirichlet(alpha)."""
    clean: Annotated[float, at_least(0)] = 0.0
    """With saliency: weight of the loss on the unmixed images."""
    transport: Annotated[int, at_least(0)] = 0
    """With puzzle-mix: side of the transported squares, in pixels; 0 transports whole blocks of the mask."""

    subnets: Annotated[int, at_least(0)] = 0
    """GradAug: narrower sub-networks of a single network that learn its predictions; 3 as published, 0 for none."""

    batch_size: Annotated[int, at_least(1)] = 64
    """Global batch size (per member): images that each member reads per optimisation step, over all devices."""
    ghost: Annotated[int, at_least(0)] = 0
    """Ghost batch size: so many images are paired, mixed and normalised independently; 0 for the whole batch."""
    repetition: Annotated[int, at_least(1)] = 2
    """Batch repetition b: each image occurs b times per batch; b times the steps, 1 / b of the learning rate."""
    grad_accum_steps: Annotated[int, at_least(1)] = 1
    """Gradient accumulation: number of parts of the batch, computed one after the other."""
    epochs: Annotated[int, at_least(1)] = 300
    """Passes over the training set."""
    lr: Annotated[float, above(0)] = 0.1
    """Learning rate for a batch size of 128; the optimiser uses lr / b * batch_size / 128."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """Optimiser."""
    momentum: Annotated[float, Range(0, 1, "[)")] = 0.9
    """Nesterov momentum of SGD, or beta_1 of AdamW."""
    beta2: Annotated[float, Range(0, 1, "[)")] = 0.999
    """beta_2 of AdamW."""
    weight_decay: Annotated[float, at_least(0)] = 6e-4
    """Weight decay. 6e-4 is the paper's l2 factor 3e-4: its code adds 3e-4 |w|^2 to the loss."""
    decay_norms: bool = True
    """Apply weight decay to norms, biases and other vectors too."""
    layer_decay: Annotated[float, Range(0, 1, "(]")] = 1.0
    """Layer-wise learning-rate decay: factor per block, from the last one down to the first."""
    head_lr: Annotated[float, above(0)] = 1.0
    """Factor on the learning rate of the heads and, with several members, of the stems."""
    clip_grad: Annotated[float, at_least(0)] = 0.0
    """Gradient clipping: maximum norm of the gradient; 0 does not clip."""
    label_smoothing: Annotated[float, Range(0, 1, "[)")] = 0.0
    """Label smoothing: share of the target that is spread over all classes."""
    warmup: Annotated[float, at_least(0)] = 1.0
    """Linear warm-up of the learning rate, in epochs."""
    schedule: Literal["step", "cosine"] = "step"
    """Learning rate schedule after the warm-up."""
    decay: Annotated[tuple[float, ...], Range(0, 1, "(]")] = (1 / 3, 2 / 3, 3 / 4)
    """With the step schedule: when the learning rate decays, in fractions of the epochs."""
    decay_rate: Annotated[float, above(0)] = 0.1
    """With the step schedule: factor of each decay."""
    average: Annotated[float, at_least(0)] = 0.0
    """Evaluate an exponential moving average (EMA) of the weights over so many epochs; 0 evaluates the last weights."""
    patience: Annotated[int, at_least(0)] = 0
    """Early stopping after this many epochs without a better one on the validation images (a higher Top1, or the same
    and a lower NLL); 0 trains all epochs."""

    precision: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"
    """Precision of the computation; weights are always float32. fp16 uses loss scaling. fp8
    (experimental) is bf16 with the 3x3 convolutions trained in fp8; it needs a GPU from Ada on."""
    seed: Annotated[int, at_least(0)] = 0
    """Random seed of the initial weights and of all random draws."""

    def __post_init__(self) -> None:
        for name, hint in HINTS.items():
            if (value := getattr(self, name)) is not DEFAULTS[name]:  # which are allowed; checks take most of the time
                check_field(name, value, hint)
        self._check_batches()
        self._check_members()
        self._check_backbone()
        self.mixer()  # checks mask, alpha, p, r and association
        if not self.is_backbone:
            FAMILIES[self.model](self.depth, self.width)  # checks the depth

    def _check_batches(self) -> None:
        n, ghost, b = self.batch_size, self.ghost, self.repetition
        if n % b:
            raise UserError(f"batch_size = {n} must be a multiple of repetition b = {b}")
        if ghost and (n % ghost or ghost % b):
            raise UserError(f"ghost = {ghost} must divide batch_size = {n} and be a multiple of repetition b = {b}")
        if n % (parts := self.grad_accum_steps) or (ghost and n // parts % ghost):
            whole = f"ghost = {ghost} images" if ghost else "equal parts"
            raise UserError(f"batch_size = {n} cannot be divided into grad_accum_steps = {parts} parts of {whole}")
        if self.patience and not self.validation:
            raise UserError(f"patience = {self.patience} needs held-out images; give validation, such as 0.1")
        if self.saliency == "co-mixup" and part_size(n) < 3:
            raise UserError(f"batch_size = {n} must have a divisor from 3 to 20: co-mixup mixes equal parts of a batch")

    def _check_members(self) -> None:
        for name in ("feature_mixing", "saliency", "subnets"):
            if self.members > 1 and getattr(self, name) not in ("none", 0):
                raise UserError(f"{name} = {getattr(self, name)} is for single networks; set members = 1")
        if "none" not in (self.feature_mixing, self.saliency):
            raise UserError(f"saliency = {self.saliency} excludes feature_mixing = {self.feature_mixing}; set only one")
        for name in ("encoders", "heads"):
            if getattr(self, name) not in (None, 1, self.members):
                raise UserError(f"{name} = {getattr(self, name)}; it must be 1 or members = {self.members}")
        if (self.association == "interpolated") != (self.members > 1 and self.heads == 1):
            raise UserError(
                f"heads = {self.heads} with association = {self.association}: a head that members share (heads = 1) is "
                "trained on interpolated labels (association = interpolated); set both or none"
            )

    def _check_backbone(self) -> None:
        if self.is_backbone and (setting := self.for_families()):
            raise UserError(
                f"{setting} is for network families, not for model = {quoted(self.model)}; leave it out, or take "
                "another recipe"
            )
        if not self.is_backbone and (settings := _changed(self, BACKBONE_FIELDS)):
            kind = "backbones such as timm/NAME"
            raise UserError(f"{settings[0]} is for {kind}, not for model = {quoted(self.model)}; leave it out")
        if self.teacher and (self.saliency != "none" or self.association != "own"):
            raise UserError("teacher needs association = own and saliency = none; set these, or leave teacher out")

    def for_families(self) -> str | None:
        """Return a setting that only network families support, if it has one."""
        return next(iter(["mask = concat"] if self.mask == "concat" else _changed(self, FAMILY_FIELDS)), None)

    @property
    def is_backbone(self) -> bool:
        """Whether the network is a wrapped classifier of a library or of the user."""
        return BACKBONES.fullmatch(self.model) is not None

    def held_out(self, samples: int) -> int:
        """Return the number of validation images out of so many training images."""
        return round(self.validation * samples) if self.validation < 1 else round(self.validation)

    def seen(self, size: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the size (C, H, W) of the network's input for images of a size (C, H, W)."""
        return size if self.size is None else (size[0], self.size, self.size)

    @property
    def ghosts(self) -> int:
        """Number of ghost batches per step."""
        return self.batch_size // self.ghost if self.ghost else 1

    @property
    def rate(self) -> float:
        """Learning rate after the warm-up: lr / b * batch_size / 128."""
        return self.lr / self.repetition * self.batch_size / 128

    @property
    def architecture(self) -> str:
        """Name of the network: of the backbone, or for `mixmo.create`, such as wrn28_10."""
        return self.model if self.is_backbone else f"{self.model}{self.depth}_{self.width}"

    def mixer(self, stride: int = 1) -> Mixer:
        """Return the mixer of the batches, at the resolution of the encoders' features: `net.stride`."""
        return Mixer(self.mask, self.members, self.alpha, self.p, self.r, stride, self.association)

    def network(self, classes: int, size: tuple[int, int, int], trained: bool = False) -> Ensemble:
        """Return a new network, initialised from torch's global random generator.

        Args:
            classes: Number of classes.
            size: (C, H, W) of the images that it reads.
            trained: Read the pretrained weights of a backbone, if the recipe has some.
        """
        if self.is_backbone:
            return wrap_backbone(
                self.model,
                classes,
                size,
                members=self.members,
                stem=self.stem,
                head=self.head,
                diversity=self.diversity,
                drop_path=self.drop_path,
                pretrained=self.pretrained and trained and not (self.weights or self.start),
                weights=self.weights if trained and not self.start else None,
            )
        return create(
            self.architecture,
            classes,
            self.members,
            encoders=self.encoders,
            heads=self.heads,
            concat=self.mask == "concat",
            channels=size[0],
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as YAML and JSON can write them: tuples become lists."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Recipe":
        """Return the recipe of fields as `to_dict` writes them; missing ones have their default.

        Raises:
            UserError: If a field is unknown or its value is not allowed.
        """
        tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        values: dict[str, Any] = {RENAMED.get(name, name): value for name, value in tuples.items()}
        _check_names(values)
        return cls(**values)

    def replace(self, **changes: Any) -> "Recipe":
        """Return a recipe that differs in these fields, with the errors of `from_dict`."""
        _check_names(changes)
        return dataclasses.replace(self, **changes)


def _changed(recipe: Recipe, fields: Mapping[str, Any]) -> list[str]:
    """Return which fields differ from these values."""
    found = {name: getattr(recipe, name) for name in fields}
    return [f"{name} = {quoted(value)}" for name, value in found.items() if value != fields[name]]


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if name not in FIELDS:
            raise unknown("field", name, FIELDS)


HINTS = get_type_hints(Recipe, include_extras=True)
DEFAULTS = {field.name: field.default for field in dataclasses.fields(Recipe)}
KINDS = get_type_hints(Recipe)
FIELDS = tuple(KINDS)
