"""Lightning: `Trainer(max_epochs=10).fit(MixMoModule(net, mixer, optimizer), train_loader, val_loader)`."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from mixmo.inference.predict import predict
from mixmo.integrations.common import StepMixer, check_mixer
from mixmo.metrics.scores import nll, top1
from mixmo.mixing.loss import loss
from mixmo.mixing.mixer import Mixer
from mixmo.models.network import Ensemble
from mixmo.utils.errors import UserError, first_line

try:
    from lightning.pytorch import LightningModule
except ModuleNotFoundError as error:
    raise UserError(f"lightning cannot be imported ({first_line(error)}); pip install 'mixmo[loops]'") from error

PREDICTED = ("logits", "probs", "labels", "entropy", "mutual_information")


class MixMoModule(LightningModule):
    """Train and evaluate a network with M members on batches (images, labels); predict on images.

    It logs `train_loss`, `val_nll`, `val_top1`, `test_nll` and `test_top1`.

    Args:
        net: A network of `mixmo.wrap` or `mixmo.create`.
        mixer: Pairs and mixes each batch, on its device; of as many members as the network.
        optimizer: From the parameters to what Lightning's `configure_optimizers` may return, such as
            `lambda parameters: torch.optim.AdamW(parameters, 1e-3)`.
        seed: Seed of the mixing.
    """

    def __init__(
        self, net: Ensemble, mixer: Mixer, optimizer: Callable[[Iterable[nn.Parameter]], Any], *, seed: int = 0
    ) -> None:
        super().__init__()
        check_mixer(net, mixer)
        self.net, self.mixer, self.optimizer = net, StepMixer(mixer, seed), optimizer

    def forward(self, images: Tensor) -> Tensor:
        """Return the ensemble's logits (N, K)."""
        logits: Tensor = self.net(images)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the MixMo loss of a mixed batch."""
        images, labels = batch
        trainer = self.trainer
        step = trainer.fit_loop.epoch_loop.total_batch_idx  # batches, several of which may make an optimiser step
        steps = trainer.estimated_stepping_batches * trainer.accumulate_grad_batches
        steps = steps if steps > 0 else math.inf  # -1 for a stream of unknown length
        mix = self.mixer(images, labels, step, steps, rank=self.global_rank, processes=trainer.world_size)
        value = loss(self.net(mix), mix)
        self.log("train_loss", value, batch_size=len(images))
        return value

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._score("val", *batch)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._score("test", *batch)

    def predict_step(self, batch: Tensor | tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """Return fields of the `Prediction` for images, or for a batch (images, labels), which Lightning can gather."""
        prediction = predict(self.net, batch if isinstance(batch, Tensor) else batch[0])
        return {name: getattr(prediction, name) for name in PREDICTED}

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.net.parameters())

    def _score(self, part: str, images: Tensor, labels: Tensor) -> None:
        """Log NLL and Top1 of the ensemble."""
        logits_NK = self.net(images)
        scores = {f"{part}_nll": nll(logits_NK, labels).float(), f"{part}_top1": top1(logits_NK, labels).float()}
        self.log_dict(scores, prog_bar=True, batch_size=len(images), sync_dist=True)
