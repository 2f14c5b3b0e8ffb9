from torch import nn

from mixmo.utils.eval_mode import evaluating


def test_every_module_has_its_mode_back():
    net = nn.Sequential(nn.Dropout(), nn.BatchNorm2d(3).eval())
    with evaluating(net):
        assert not any(module.training for module in net.modules())
    assert [module.training for module in net.modules()] == [True, True, False]
