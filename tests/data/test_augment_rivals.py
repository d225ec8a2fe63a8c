import pytest
import torch

from agreid_plugin.data.transforms import PatchShuffle, RandomRotation, rotate, shuffle_pixels
from agreid_plugin.data.transforms.base import draw, draw_angles
from agreid_plugin.errors import InputError


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("rival", [RandomRotation(p_img=1.0), PatchShuffle(p_img=1.0)], ids=repr)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16])
def test_called_like_plrm(rival, dtype):
    image = (torch.rand(3, 17, 11, generator=seeded()) * 255).to(dtype)
    changed = rival(image, seeded(1))
    assert changed.shape == image.shape
    assert changed.dtype == dtype
    assert not torch.equal(changed, image)
    assert torch.equal(changed, rival(image[None], seeded(1))[0])
    batch = rival(image.repeat(3, 1, 1, 1), seeded(1))
    assert not torch.equal(batch[0], batch[1])


@pytest.mark.parametrize("rival", [RandomRotation, PatchShuffle])
def test_images_change_as_often_as_p_img_says(rival):
    images = torch.rand(2000, 1, 4, 4, generator=seeded())
    changed = (rival(p_img=0.3)(images, seeded(1)) != images).flatten(1).any(dim=1)
    assert changed.float().mean().item() == pytest.approx(0.3, abs=0.04)
    assert torch.equal(rival(p_img=0.0)(images), images)
    assert rival(p_img=1.0).eval()(images) is images


def test_a_rotated_image_is_the_one_image_turned_by_its_angle():
    images = torch.rand(3, 3, 12, 8, generator=seeded())
    rotated, again = RandomRotation(p_img=1.0)(images, seeded(2)), seeded(2)
    draw((3,), images.device, again)  # whether each is chosen
    angles = draw_angles((3,), 45.0, images.device, again)
    for image, angle, result in zip(images, angles, rotated, strict=True):
        torch.testing.assert_close(rotate(image[None], angle[None])[0], result)


def test_half_a_turn_by_hand():
    image = torch.arange(6.0).view(1, 1, 2, 3)
    torch.testing.assert_close(rotate(image, torch.tensor([180.0])), image.flip(2, 3), atol=1e-5, rtol=0)


def test_shuffled_pixels_by_hand():
    # 2 x 4 pixels are two patches: 1 2 / 5 6 reversed is 6 5 / 2 1; 3 4 / 7 8 with its columns swapped is 4 3 / 8 7.
    # The second channel, ten times the first, goes along. The fifth column is no whole patch and stays.
    image = torch.tensor([[1, 2, 3, 4, 9], [5, 6, 7, 8, 9]])
    expected = torch.tensor([[6, 5, 4, 3, 9], [2, 1, 8, 7, 9]])
    order = torch.tensor([[[[3, 2, 1, 0], [1, 0, 3, 2]]]])
    shuffled = shuffle_pixels(torch.stack([image, 10 * image])[None], order, n=2)
    assert torch.equal(shuffled, torch.stack([expected, 10 * expected])[None])


def test_shuffling_keeps_each_patchs_pixels_and_every_order_is_as_likely():
    image = torch.arange(4.0).view(1, 1, 2, 2).repeat(6000, 1, 1, 1)
    shuffled = PatchShuffle(p_img=1.0)(image, seeded()).flatten(1)
    assert torch.equal(shuffled.sort(dim=1).values, image.flatten(1))
    orders, often = shuffled.unique(dim=0, return_counts=True)
    assert len(orders) == 24
    assert (often - 250).abs().max() < 70  # 4.5 standard deviations of sqrt(6000 / 24 * 23 / 24) = 15.5


def test_gradients_flow_to_the_image():
    for rival in (RandomRotation(p_img=1.0), PatchShuffle(p_img=1.0, n=3)):
        images = torch.rand(2, 1, 7, 6, requires_grad=True)
        rival(images).square().sum().backward()
        assert images.grad.abs().sum() > 0


def test_bad_arguments_are_named():
    for make, words in [
        (lambda: RandomRotation(theta_max=-1), "theta_max=-1"),
        (lambda: RandomRotation(p_img=2), "p_img=2"),
        (lambda: PatchShuffle(n=0), "n=0"),
        (lambda: PatchShuffle(p_img=-1), "p_img=-1"),
        (lambda: shuffle_pixels(torch.rand(1, 1, 4, 4), torch.zeros(1, 2, 2, 3), 2), r"order=\(1, 2, 2, 3\)"),
    ]:
        with pytest.raises(InputError, match=words):
            make()
