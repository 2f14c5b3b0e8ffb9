import pytest
from torch import nn

from mixmo.utils.eval_mode import evaluating


def test_every_module_has_its_mode_back_also_after_an_error():
    net = nn.Sequential(nn.Dropout(), nn.BatchNorm2d(3).eval())
    with pytest.raises(RuntimeError), evaluating(net):
        assert not any(module.training for module in net.modules())
        raise RuntimeError
    assert [module.training for module in net.modules()] == [True, True, False]
