"""Hugging Face: `MixMoTrainer(net, TrainingArguments(...), mixer=mixer, train_dataset=...)`."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import default_collate

from mixmo.integrations.common import StepMixer, check_mixer
from mixmo.mixing.loss import loss
from mixmo.mixing.mixer import Mixer
from mixmo.models.network import Ensemble
from mixmo.utils.errors import UserError, first_line

try:
    from transformers import Trainer, TrainingArguments
except ModuleNotFoundError as error:
    raise UserError(f"transformers cannot be imported ({first_line(error)}); pip install 'mixmo[loops]'") from error

IMAGES, LABELS = "pixel_values", "labels"  # keys of Hugging Face's image classifiers


class MixMoTrainer(Trainer):
    """A Trainer whose training batches are paired and mixed on the device; evaluation uses the ensemble's logits.

    Samples are (image, label), or dicts with `pixel_values` and `label` or `labels`. Mixing is seeded by `args.seed`.

    Args:
        model: A network of `mixmo.wrap` or `mixmo.create`.
        args: As for `Trainer`; without gradient checkpointing and label smoothing, the model's and the loss's own.
        mixer: Pairs and mixes each batch; of as many members as the network.
        others: Further arguments of `Trainer`.
    """

    def __init__(self, model: Ensemble, args: TrainingArguments | None = None, *, mixer: Mixer, **others: Any) -> None:
        check_mixer(model, mixer)
        if args is not None and (args.gradient_checkpointing or args.label_smoothing_factor):
            instead = "call net.backbone.gradient_checkpointing_enable(), or give smoothed labels (N, K)"
            raise UserError(f"gradient_checkpointing and label_smoothing_factor are not supported; {instead}")
        others.setdefault("data_collator", collate)
        super().__init__(model, args, **others)
        self.label_names = [LABELS]  # the Trainer would look for them among the arguments of `forward`
        self.step_mixer = StepMixer(mixer, self.args.seed)
        self._place = (0, 0)  # the current step, and the next of its accumulated batches

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the MixMo loss in training, the cross-entropy of the ensemble in evaluation."""
        images, labels = inputs[IMAGES], inputs[LABELS]
        if model.training:
            args, parts = self.args, self.args.gradient_accumulation_steps
            step, part = self._place if self._place[0] == self.state.global_step else (self.state.global_step, 0)
            self._place = (step, part + 1)
            ranks = {"rank": args.process_index, "processes": args.world_size}
            mix = self.step_mixer(images, labels, step * parts + part, self.state.max_steps * parts, **ranks)
            logits = model(mix)
            value = loss(logits, mix)
        else:
            logits = model(images)
            value = F.cross_entropy(logits.float(), labels)
        return (value, {"logits": logits}) if return_outputs else value

    def _set_signature_columns_if_needed(self) -> None:  # the Trainer would keep the arguments of `forward`
        self._signature_columns = [IMAGES, LABELS, "label"]  # type: ignore[assignment]


def collate(samples: Sequence[Mapping[str, Any] | tuple[Any, Any]]) -> dict[str, Tensor]:
    """Return a batch of pairs, or of dicts whose label may be called `label`."""
    if isinstance(first := samples[0], Mapping):
        if IMAGES not in first or not {LABELS, "label"} & first.keys():
            raise UserError(f"a sample has {', '.join(first)}; it needs {IMAGES}, and label or {LABELS}")
        key = LABELS if LABELS in first else "label"
        samples = [(sample[IMAGES], sample[key]) for sample in samples]  # type: ignore[call-overload]
    images, labels = default_collate(list(samples))
    return {IMAGES: images, LABELS: torch.as_tensor(labels)}
