"""Members have the layouts of torch-uncertainty and torchmetrics, index by index."""

import torch
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError

import mixmo
from mixmo.integrations.uncertainty import Estimators, by_sample
from mixmo.metrics.scores import ece, top1


def test_members_have_the_layouts_of_torch_uncertainty() -> None:
    torch.manual_seed(0)
    net, images = mixmo.create("wrn10_1", classes=10, members=3).eval(), torch.randn(4, 3, 8, 8)
    flat, prediction = Estimators(net)(images), mixmo.predict(net, images)
    assert flat.shape == (12, 10)
    for m in range(3):
        for n in range(4):  # einops' "(m b) c -> b m c", which its routines apply
            torch.testing.assert_close(flat[m * 4 + n], prediction.logits[m, n])
            torch.testing.assert_close(by_sample(prediction.members)[n, m], prediction.members[m, n])


def test_torchmetrics_agrees_on_accuracy_and_calibration_error() -> None:
    torch.manual_seed(0)
    logits_MNK, labels_N = 3 * torch.randn(2, 200, 10), torch.randint(0, 10, (200,))
    prediction, ensemble = mixmo.Prediction(logits_MNK), logits_MNK.mean(0)
    probs = prediction.probs.float()
    torch.testing.assert_close(
        MulticlassAccuracy(10, average="micro")(probs, labels_N).double(), top1(ensemble, labels_N), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(
        MulticlassCalibrationError(10, n_bins=15)(probs, labels_N).double(), ece(ensemble, labels_N), atol=1e-5, rtol=0
    )
