"""Any difference between two sets of tensors changes their fingerprint."""

import pytest
import torch

from distillery.training import saving as module
from distillery.training.saving import fingerprint

CPU = torch.device("cpu")


def tensors(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in [(3, 5), (7,), ()]]


def value(found):
    assert found.dtype == torch.int64
    assert found.shape == ()
    return int(found)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8])
def test_every_single_bit_counts(dtype):
    same = value(fingerprint(tensors(dtype), CPU))
    found = {same}
    num_bits = 0
    for number, tensor in enumerate(tensors(dtype)):
        for byte in range(tensor.nbytes):
            for bit in range(8):
                changed = tensors(dtype)
                changed[number].view(-1).view(torch.uint8)[byte] ^= 1 << bit
                found.add(value(fingerprint(changed, CPU)))
                num_bits += 1
    assert value(fingerprint(tensors(dtype), CPU)) == same
    assert len(found) == 1 + num_bits


def test_order_and_sign_of_zero_count():
    first, second, third = tensors()
    same = value(fingerprint([first, second, third], CPU))
    assert value(fingerprint([second, first, third], CPU)) != same
    assert value(fingerprint([first, second.flip(0), third], CPU)) != same
    zero = torch.zeros(4)
    assert value(fingerprint([zero], CPU)) != value(fingerprint([-zero], CPU))


def test_blocks_are_all_read(monkeypatch):
    tensor = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(module, "BLOCK", 64)
    found = set()
    for position in range(1000):
        changed = tensor.clone()
        changed[position] += 1
        found.add(value(fingerprint([changed], CPU)))
    assert len(found) == 1000
    swapped = torch.cat([tensor[64:128], tensor[:64], tensor[128:]])
    assert value(fingerprint([swapped], CPU)) != value(fingerprint([tensor], CPU))


def test_nothing_has_a_fingerprint_too():
    assert value(fingerprint([], CPU)) == 0


@pytest.mark.gpu
def test_a_gpu_gives_the_same():
    on_gpu = [tensor.cuda() for tensor in tensors()]
    assert value(fingerprint(on_gpu, torch.device("cuda"))) == value(fingerprint(tensors(), CPU))
