import math

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from agreid_plugin.data.transforms import PLRM, patch_probabilities, rotate, rotate_patches, rotation_grid
from agreid_plugin.data.transforms.base import draw_angles
from agreid_plugin.errors import InputError


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def every_patch(**changed) -> PLRM:
    """PLRM that selects all patches of all images."""
    return PLRM(**{"p_img": 1.0, "p_0": 1.0, **changed})


# Eq. 3


def test_probabilities_by_hand():
    # 3 x 3: d_max = sqrt 2. Corners 0.3; edges d = 1: 0.3 + 0.8 (1 - 1 / sqrt 2) = 0.534315; center 1.1, clipped.
    corner, edge = 0.3, 0.534315
    expected = torch.tensor([[corner, edge, corner], [edge, 1.0, edge], [corner, edge, corner]])
    torch.testing.assert_close(patch_probabilities(3, 3), expected, atol=1e-6, rtol=0)


def test_printed_probabilities_by_hand():
    # 2 x 2 as printed: center (2, 2), d_max = sqrt 8. (1, 1): d = sqrt 2, 0.3 + 0.8 / 2; (1, 2) and (2, 1): d = 1,
    # 0.3 + 0.8 (1 - 1 / sqrt 8) = 0.817157; (2, 2): 1.1, clipped.
    expected = torch.tensor([[0.7, 0.817157], [0.817157, 1.0]])
    torch.testing.assert_close(patch_probabilities(2, 2, literal=True), expected, atol=1e-6, rtol=0)


def test_probabilities_of_the_papers_size_grow_toward_the_center_from_p_0_in_the_corners():
    p = patch_probabilities(16, 8)
    assert torch.equal(p, p.flip(0))
    assert torch.equal(p, p.flip(1))
    assert p[0, 0].item() == pytest.approx(0.3)
    assert (p == 1).sum() == 4
    assert p.mean().item() == pytest.approx(0.641, abs=5e-4)
    assert (p[:8].diff(dim=0) >= 0).all()
    assert (p[:, :4].diff(dim=1) >= 0).all()


def test_printed_probabilities_of_the_papers_size_peak_in_the_bottom_right_corner():
    p = patch_probabilities(16, 8, literal=True)
    corners = [p[0, 0].item(), p[0, -1].item(), p[-1, 0].item(), p[-1, -1].item()]
    assert corners == pytest.approx([0.36, 0.43, 0.79, 1.0], abs=6e-3)
    assert p.mean().item() == pytest.approx(0.702, abs=5e-4)


def test_a_lone_patch_is_the_center():
    assert patch_probabilities(1, 1, p_0=0.1, c_weight=0.5).item() == pytest.approx(0.6)


@pytest.mark.parametrize("literal", [False, True])
def test_patches_are_selected_as_often_as_their_probability_says(literal):
    plrm = PLRM(p_img=0.5, n=1, literal=literal)
    images = torch.empty(20000, 1, 16, 8)  # as many patches as 256 x 128 has with n = 16
    often = plrm.select(images, seeded()).float().mean(dim=0)
    # Four and a half standard errors of a share of 1/2: 4.5 * sqrt(0.25 / 20000) = 0.016.
    assert (often - 0.5 * patch_probabilities(16, 8, literal=literal)).abs().max() < 0.016


def test_about_half_of_the_images_change_and_each_patch_by_its_own_draw():
    selected = PLRM(n=1).select(torch.empty(4000, 1, 16, 8), seeded())
    untouched = ~selected.flatten(1).any(dim=1)
    assert untouched.float().mean().item() == pytest.approx(0.5, abs=0.03)
    corners = selected[~untouched][:, [0, 0, -1, -1], [0, -1, 0, -1]].float()
    assert (torch.corrcoef(corners.T) - torch.eye(4)).abs().max() < 0.1


def test_the_expected_number_of_patches_changes():
    images = torch.rand(400, 1, 64, 32, generator=seeded())
    changed = (PLRM(n=4)(images, seeded(1)) != images).view(400, 16, 4, 8, 4).any(dim=4).any(dim=2)
    # 0.5 * 0.641 * 128 = 41.0 an image, give or take 41.3 (an image changes 82 or none): three errors of 400 are 6.2.
    assert changed.flatten(1).sum(dim=1).float().mean().item() == pytest.approx(41.0, abs=6.2)


# Eq. 4


def test_angles_are_uniform_to_both_sides():
    angles = draw_angles((100000,), 45.0, torch.device("cpu"), seeded())
    assert angles.abs().max() <= 45
    assert angles.mean().item() == pytest.approx(0, abs=0.4)
    assert angles.std().item() == pytest.approx(45 / math.sqrt(3), abs=0.3)


# Eq. 5


def test_a_quarter_turn_by_hand():
    images = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    mixed = rotate_patches(images, torch.full((1, 1, 1), 90.0), torch.ones(1, 1, 1, dtype=torch.bool), n=2)
    # Counter-clockwise: [[2, 4], [1, 3]]; half of each.
    torch.testing.assert_close(mixed, torch.tensor([[[[1.5, 3.0], [2.0, 3.5]]]]))


@pytest.mark.parametrize(("fill", "expected"), [("zero", 1.18934), ("self", 1.39645)])
def test_an_eighth_turn_of_two_by_two_by_hand(fill, expected):
    # The top left pixel is at (-0.5, -0.5) from the center and comes from (0, -sqrt 0.5): halfway between the columns
    # and 0.207107 above the top row, so 0.792893 * (1 + 2) / 2 = 1.18934 plus 0.207107 of nothing or of itself, 1.
    image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    assert rotate(image, torch.tensor([45.0]), fill)[0, 0, 0, 0].item() == pytest.approx(expected, abs=1e-5)


def test_the_grid_by_hand():
    # A quarter turn of 2 rows x 4 columns: the top left pixel, (-1.5, -0.5) from the center, comes from (0.5, -1.5),
    # in halves of width and height (0.25, -1.5); no turn leaves it at (-0.75, -0.5).
    turned, still = rotation_grid(torch.tensor([90.0, 0.0]), 2, 4)
    torch.testing.assert_close(turned[0, 0], torch.tensor([0.25, -1.5]))
    torch.testing.assert_close(still[0, 0], torch.tensor([-0.75, -0.5]))


def slow_patch(patch: torch.Tensor, theta: float, alpha: float, fill: str) -> torch.Tensor:
    """Eqs. 4 and 5 of one patch (C, n, n), pixel by pixel with explicit bilinear weights."""
    n, out, center = patch.shape[-1], patch.clone(), (patch.shape[-1] - 1) / 2
    cos, sin = math.cos(math.radians(theta)), math.sin(math.radians(theta))
    for row in range(n):
        for column in range(n):
            dx, dy = column - center, row - center
            x, y = dx * cos - dy * sin + center, dx * sin + dy * cos + center
            rotated, covered = torch.zeros_like(patch[:, 0, 0]), 0.0
            for r in (math.floor(y), math.floor(y) + 1):
                for c in (math.floor(x), math.floor(x) + 1):
                    if 0 <= r < n and 0 <= c < n:
                        share = (1 - abs(x - c)) * (1 - abs(y - r))
                        rotated, covered = rotated + share * patch[:, r, c], covered + share
            if fill == "self":
                rotated = rotated + (1 - covered) * patch[:, row, column]
            out[:, row, column] = alpha * rotated + (1 - alpha) * patch[:, row, column]
    return out


def slow_plrm(images, angles, selected, n, alpha, fill) -> torch.Tensor:
    """The loop over patches, in double precision."""
    out = images.double()
    for b, i, j in selected.nonzero().tolist():
        spot = (b, slice(None), slice(i * n, (i + 1) * n), slice(j * n, (j + 1) * n))
        out[spot] = slow_patch(out[spot].clone(), angles[b, i, j].item(), alpha, fill)
    return out


CASES = [  # height, width, n, alpha, theta_max
    (16, 8, 4, 0.5, 45.0),
    (13, 11, 4, 0.7, 180.0),  # one row and three columns left over
    (10, 7, 5, 1.0, 90.0),
    (19, 20, 8, 0.5, 45.0),  # rows of images and of patches share no longer piece than half a patch
    (6, 6, 1, 0.5, 180.0),
]


@pytest.mark.parametrize("fill", ["zero", "self"])
@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize(("height", "width", "n", "alpha", "theta_max"), CASES)
def test_equals_the_slow_loop(height, width, n, alpha, theta_max, literal, fill):
    plrm = PLRM(p_img=0.7, n=n, alpha=alpha, theta_max=theta_max, fill=fill, literal=literal)
    images = torch.rand(4, 3, height, width, generator=seeded(1))
    mixed, again = plrm(images, seeded(2)), seeded(2)
    selected = plrm.select(images, again)
    angles = draw_angles(selected.shape, theta_max, images.device, again)
    assert selected.any()
    slow = slow_plrm(images, angles, selected, n, alpha, fill)
    torch.testing.assert_close(mixed.double(), slow, atol=1e-5, rtol=0)


@pytest.mark.parametrize("fill", ["zero", "self"])
def test_uint8_equals_the_slow_loop_rounded(fill):
    images = torch.randint(0, 256, (3, 3, 13, 11), dtype=torch.uint8, generator=seeded(1))
    selected = torch.rand(3, 3, 2, generator=seeded(2)) < 0.6
    angles = draw_angles((3, 3, 2), 60.0, images.device, seeded(3))
    mixed = rotate_patches(images, angles, selected, n=4, fill=fill)
    assert mixed.dtype == torch.uint8
    slow = slow_plrm(images, angles, selected, 4, 0.5, fill)
    assert (mixed.double() - slow).abs().max() <= 0.5 + 1e-3


def test_patches_do_not_mix_with_their_neighbors_nor_change_unselected_ones():
    images = torch.zeros(1, 1, 8, 8)
    images[..., :4, :4] = 1.0
    selected = torch.tensor([[[False, True], [True, True]]])
    mixed = rotate_patches(images, torch.full((1, 2, 2), 30.0), selected, n=4)
    assert torch.equal(mixed, images)


# The call


def test_alpha_zero_is_the_identity():
    images = torch.rand(2, 3, 40, 24)
    assert torch.equal(every_patch(n=8, alpha=0.0)(images), images)


def test_theta_max_zero_is_the_identity_up_to_rounding():
    images = torch.rand(2, 3, 40, 24)
    torch.testing.assert_close(every_patch(n=8, theta_max=0)(images), images, atol=1e-5, rtol=0)


def test_p_img_zero_and_eval_mode_leave_images_alone():
    images = torch.rand(4, 3, 32, 32)
    assert torch.equal(PLRM(p_img=0.0)(images), images)
    assert every_patch().eval()(images) is images


def test_the_rest_of_an_image_that_patches_do_not_divide_stays():
    images = torch.rand(2, 3, 37, 21)
    mixed = every_patch(n=8)(images)
    assert torch.equal(mixed[..., 32:, :], images[..., 32:, :])
    assert torch.equal(mixed[..., 16:], images[..., 16:])
    assert (mixed[..., :32, :16] != images[..., :32, :16]).float().mean() > 0.95


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64, torch.bfloat16])
def test_an_image_alone_is_a_batch_of_one(dtype):
    image = (torch.rand(3, 33, 20, generator=seeded()) * 255).to(dtype)
    before = image.clone()
    mixed = every_patch()(image, seeded(1))
    assert mixed.shape == image.shape
    assert mixed.dtype == dtype
    assert torch.equal(mixed, every_patch()(image[None], seeded(1))[0])
    assert torch.equal(image, before)
    assert not torch.equal(mixed, image)


def test_memory_layout_does_not_matter():
    images = torch.rand(2, 3, 32, 16)
    mixed = every_patch()(images, seeded())
    assert torch.equal(every_patch()(images.to(memory_format=torch.channels_last), seeded()), mixed)
    rows_last = images[0].permute(1, 2, 0).contiguous().permute(2, 0, 1)
    assert torch.equal(every_patch()(rows_last, seeded(4)), every_patch()(images[0], seeded(4)))


def test_same_generator_same_result_and_each_image_its_own():
    images = torch.rand(1, 3, 32, 16).repeat(4, 1, 1, 1)
    plrm = every_patch()
    assert torch.equal(plrm(images, seeded(5)), plrm(images, seeded(5)))
    assert not torch.equal(plrm(images, seeded(5)), plrm(images, seeded(6)))
    assert len({tuple(image.flatten().tolist()) for image in plrm(images, seeded(5))}) == 4


class Augmented(Dataset):
    """The same image again and again, augmented."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return every_patch()(torch.linspace(0, 1, 32 * 32).view(1, 32, 32))


def test_a_loaders_seed_reproduces_its_workers_draws():
    first, second = (list(DataLoader(Augmented(), 4, num_workers=2, generator=seeded(3))) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert len({tuple(image.flatten().tolist()) for image in torch.cat(first)}) == 8


def test_gradients_flow_to_the_image():
    images = torch.rand(1, 1, 5, 4, dtype=torch.float64, requires_grad=True)
    angles, selected = torch.tensor([[[20.0, -40.0]] * 2]), torch.tensor([[[True, False], [True, True]]])
    for fill in ("zero", "self"):
        assert torch.autograd.gradcheck(lambda x, fill=fill: rotate_patches(x, angles, selected, 2, fill=fill), images)
    # Filled with itself, a patch of constant color stays: each pixel's weights add up to 1, and so do the gradients'.
    rotate_patches(images, angles, selected, 2, fill="self").sum().backward()
    assert images.grad.sum().item() == pytest.approx(20)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("p_img", 1.5),
        ("p_0", -0.1),
        ("n", 0),
        ("n", 2.5),
        ("c_weight", -1),
        ("c_weight", math.inf),
        ("theta_max", 181),
        ("alpha", math.nan),
        ("alpha", "half"),
    ],
)
def test_bad_arguments_are_named(name, value):
    with pytest.raises(InputError, match=f"{name}={value!r}"):
        PLRM(**{name: value})


def test_a_fill_that_is_none_is_named():
    for make in (lambda: PLRM(fill="black"), lambda: rotate(torch.rand(1, 3, 4, 4), torch.zeros(1), "black")):
        with pytest.raises(InputError, match="fill 'black' unknown; known: self, zero"):
            make()


def test_bad_images_are_named():
    for images, words in [
        (torch.rand(32, 32), "images="),
        ([1, 2], "images=list"),
        (torch.ones(3, 32, 32, dtype=torch.int64), "torch.int64"),
        (torch.rand(3, 8, 32), "n=16 is larger than the images of 8 x 32"),
    ]:
        with pytest.raises(InputError, match=words):
            PLRM()(images)
    with pytest.raises(InputError, match=r"angles=\(1, 2, 1\)"):
        rotate_patches(torch.rand(1, 3, 32, 32), torch.zeros(1, 2, 1), torch.ones(1, 2, 2, dtype=torch.bool))


def test_it_prints_its_hyper_parameters():
    assert "p_img=0.5, p_0=0.3, n=16, c_weight=0.8, theta_max=45.0, alpha=0.5, fill='zero'" in repr(PLRM())
