"""The carried images are whole and split once and for all; the model and the optimizer do what they say."""

import torch
from torch.nn import functional

from cloudtrain.trainer import digits
from cloudtrain.trainer.model import SimpleCNN
from cloudtrain.trainer.optim import AdamW, cosine


def test_the_images_are_all_there_and_split_without_overlap() -> None:
    training, held_out = digits.load()
    assert (len(training), len(held_out)) == (1348, 449)
    images = torch.cat([training.images, held_out.images])
    labels = torch.cat([training.labels, held_out.labels])
    assert images.shape == (1797, 1, 8, 8)
    assert images.dtype == torch.float32
    assert (images.min().item(), images.max().item()) == (0.0, 1.0)
    # From UCI's description of the test set (optdigits.names): how many there are of each digit.
    assert torch.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_an_item_is_an_image_and_its_label() -> None:
    training, _ = digits.load()
    image, label = training[3]
    assert image.shape == (1, 8, 8)
    assert label.dtype == torch.int64
    assert torch.equal(image, training.images[3])


def test_the_split_does_not_depend_on_the_seed_of_the_run() -> None:
    torch.manual_seed(1)
    _, first = digits.load()
    torch.manual_seed(2)
    _, second = digits.load()
    assert torch.equal(first.images, second.images)


def test_adamw_updates_as_torchs_does() -> None:
    torch.manual_seed(0)
    ours, theirs = SimpleCNN().eval(), SimpleCNN().eval()
    theirs.load_state_dict(ours.state_dict())
    mine = AdamW(ours.parameters(), lr=1e-3)
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-3)
    images, labels = digits.load()[0][:64]
    for step in range(10):
        mine.lr = reference.param_groups[0]["lr"] = cosine(step, 10, 1e-2)
        for model, optimizer in ((ours, mine), (theirs, reference)):
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-6)


def test_adamw_comes_back_from_its_state_to_the_same_bit() -> None:
    def stepped(parameter: torch.Tensor, optimizer: AdamW, number: int) -> None:
        parameter.grad = torch.full_like(parameter, float(number))
        optimizer.step()

    parameter = torch.ones(4)
    optimizer = AdamW([parameter], lr=0.1)
    stepped(parameter, optimizer, 1)
    other = AdamW([copy := parameter.clone()], lr=0.1)
    other.load_state_dict(optimizer.state_dict())
    stepped(parameter, optimizer, 2)
    stepped(copy, other, 2)
    assert torch.equal(parameter, copy)


def test_the_cosine_goes_from_the_base_to_nothing() -> None:
    assert cosine(0, 100, 0.5) == 0.5
    assert abs(cosine(50, 100, 0.5) - 0.25) < 1e-12
    assert cosine(100, 100, 0.5) < 1e-12
