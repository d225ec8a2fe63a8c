import math

import pytest
import torch

from agreid_plugin.data.transforms import pool
from agreid_plugin.data.transforms.pool import OPERATIONS, AugmentationPool
from agreid_plugin.errors import InputError

SIZE = (20, 16)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def picture(seed: int = 0) -> torch.Tensor:
    return torch.rand(3, *SIZE, generator=seeded(seed)) * 255


def results(name: str, image: torch.Tensor, draws: int = 200) -> list[torch.Tensor]:
    generator = seeded()
    return [OPERATIONS[name](image, generator) for _ in range(draws)]


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_keep_shape_and_range_and_leave_the_image(name):
    image = picture()
    before = image.clone()
    for result in results(name, image, 30):
        assert result.shape == image.shape
        assert result.min() >= -1e-3
        assert result.max() <= 255 + 1e-3
    assert torch.equal(image, before)


def test_two_are_drawn_with_replacement(monkeypatch):
    drawn = []

    def note(image, generator, **options):
        drawn.append(options)
        return image + 1

    monkeypatch.setattr(pool, "OPERATIONS", dict.fromkeys(OPERATIONS, note))
    images = torch.zeros(50, 3, 4, 4)
    assert torch.equal(AugmentationPool()(images, seeded()), images + 2)
    assert torch.equal(AugmentationPool(number=3)(images, seeded()), images + 3)
    assert 0 < sum("ratio" in options for options in drawn) < len(drawn)


def test_every_operation_is_drawn_alike(monkeypatch):
    images, drawn = torch.zeros(600, 3, 2, 2), []

    def noting(name):
        def note(image, generator, **options):
            drawn.append(name)
            return image

        return note

    monkeypatch.setattr(pool, "OPERATIONS", {name: noting(name) for name in OPERATIONS})
    AugmentationPool()(images, seeded())
    assert len(drawn) == 1200
    assert min(drawn.count(name) for name in OPERATIONS) > 150  # 200 each, of which 13 are one deviation


@pytest.mark.parametrize(("name", "share"), [("gray", 0.1), ("flip", 0.5), ("erase", 0.5)])
def test_how_often_an_operation_does_something(name, share):
    image = picture()
    changed = sum(not torch.equal(result, image) for result in results(name, image, 1000))
    assert abs(changed / 1000 - share) < 0.05


def test_flipping_mirrors():
    image = picture()
    found = [result for result in results("flip", image, 20) if not torch.equal(result, image)]
    assert all(torch.equal(result, image.flip(2)) for result in found)


def test_gray_is_the_brightness_by_hand():
    image = torch.zeros(3, 1, 1)
    image[:, 0, 0] = torch.tensor([100.0, 200.0, 50.0])
    gray = next(result for result in results("gray", image) if result[0] == result[1])
    assert gray.flatten().tolist() == pytest.approx([0.2989 * 100 + 0.587 * 200 + 0.114 * 50] * 3)


def test_erased_is_one_black_rectangle_of_a_tenth_to_a_fifth():
    image = torch.full((3, 40, 40), 7.0)
    for result in results("erase", image, 100):
        black = result[0] == 0
        assert torch.equal(black, result[2] == 0)
        if black.any():
            rows, columns = black.any(1).sum(), black.any(0).sum()
            assert rows * columns == black.sum()
            assert 0.08 < black.float().mean() < 0.22


def slow_jitter(image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Brightness, contrast and saturation, pixel by pixel: a mix with black, with the mean gray, with the own gray."""
    for change in torch.randperm(3, generator=generator).tolist():
        factor = 0.9 + 0.2 * torch.rand((), generator=generator).item()
        pixels = image.flatten(1).T.tolist()
        grays = [0.2989 * red + 0.587 * green + 0.114 * blue for red, green, blue in pixels]
        mean = sum(grays) / len(grays)
        mixed = [
            [factor * value + (1 - factor) * (0.0, mean, own)[change] for value in pixel]
            for pixel, own in zip(pixels, grays, strict=True)
        ]
        image = torch.tensor(mixed).clamp(0, 255).T.reshape(image.shape)
    return image


@pytest.mark.parametrize("seed", range(4))
def test_jitter_equals_the_slow_loop(seed):
    image = picture(seed)
    expected = slow_jitter(image, seeded(seed))
    torch.testing.assert_close(OPERATIONS["jitter"](image, seeded(seed)), expected, rtol=0, atol=1e-3)


def test_jitter_changes_by_a_tenth_at_most():
    image = torch.full((3, 4, 4), 100.0)  # gray all over: contrast and saturation find nothing to change
    values = torch.stack([result.mean() for result in results("jitter", image)])
    assert 90 <= values.min() < 92
    assert 108 < values.max() <= 110


def test_rotation_turns_by_15_degrees_at_most_and_leaves_corners_black():
    image = torch.full((3, 41, 41), 5.0)
    for result in results("rotate", image, 50):
        assert set(result.unique().tolist()) <= {0.0, 5.0}  # nearest pixels alone, nothing between
        assert (result[0, 12:29, 12:29] == 5).all()
        assert (result == 0).float().mean() < 0.12


def slow_rotation(image: torch.Tensor, theta: float) -> torch.Tensor:
    """Each pixel the nearest one of before, black where there was none."""
    height, width = image.shape[1:]
    turned, (cos, sin) = torch.zeros_like(image), (math.cos(math.radians(theta)), math.sin(math.radians(theta)))
    for row in range(height):
        for column in range(width):
            dx, dy = column - (width - 1) / 2, row - (height - 1) / 2
            x, y = round(dx * cos - dy * sin + (width - 1) / 2), round(dx * sin + dy * cos + (height - 1) / 2)
            if 0 <= x < width and 0 <= y < height:
                turned[:, row, column] = image[:, y, x]
    return turned


def test_rotation_equals_the_slow_loop_to_either_side():
    angles = [30 * torch.rand((), generator=seeded(seed)).item() - 15 for seed in range(4)]
    assert min(angles) < 0 < max(angles)
    for seed, theta in enumerate(angles):
        assert torch.equal(OPERATIONS["rotate"](picture(), seeded(seed)), slow_rotation(picture(), theta))


def slow_enlarged(part: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Bilinear, pixel by pixel, the outermost ones repeated."""
    rows, columns = part.shape[1:]
    large = torch.zeros(3, height, width)
    for row in range(height):
        for column in range(width):
            y, x = (row + 0.5) * rows / height - 0.5, (column + 0.5) * columns / width - 0.5
            for r in (math.floor(y), math.floor(y) + 1):
                for c in (math.floor(x), math.floor(x) + 1):
                    share = (1 - abs(y - r)) * (1 - abs(x - c))
                    large[:, row, column] += share * part[:, min(max(r, 0), rows - 1), min(max(c, 0), columns - 1)]
    return large


@pytest.mark.parametrize(("size", "ratio"), [((12, 12), (3 / 4, 4 / 3)), ((20, 10), (0.45, 0.55))])
def test_a_crop_is_the_rectangle_enlarged(size, ratio):
    image = torch.rand(3, *size, generator=seeded()) * 255
    for seed in range(4):
        by_width = 1 / ratio[1], 1 / ratio[0]  # the ratio of a crop is width by height, that of a rectangle the other
        top, left, rows, columns = pool._draw_rectangle(*size, (0.9, 1.0), by_width, seeded(seed))
        expected = slow_enlarged(image[:, top : top + rows, left : left + columns], *size)
        torch.testing.assert_close(OPERATIONS["crop"](image, seeded(seed), ratio=ratio), expected, rtol=0, atol=1e-3)


def test_rectangles_by_hand():
    # A fifth of 100 x 100 pixels, four times as high as wide: sqrt(2000 * 4) = 89 rows and sqrt(2000 / 4) = 22 columns.
    generator = seeded()
    found = [pool._draw_rectangle(100, 100, (0.2, 0.2), (4.0, 4.0), generator) for _ in range(400)]
    assert {(rows, columns) for _, _, rows, columns in found} == {(89, 22)}
    assert {top for top, *_ in found} == set(range(12))
    assert {left for _, left, *_ in found} > {0, 78}
    assert max(left for _, left, *_ in found) == 78
    assert pool._draw_rectangle(100, 100, (0.9, 0.9), (4.0, 4.0), generator) is None


def test_crops_of_square_images_keep_nine_tenths():
    ramp = torch.arange(100.0).expand(3, 100, 100)  # every column its own number
    for result in results("crop", ramp, 50):
        kept = result[0, 50, -1] - result[0, 50, 0] + 1
        assert 80 <= kept <= 100.5


def test_a_crop_that_never_fits_is_the_central_one():
    ramp = torch.arange(100.0)[:, None].expand(3, 100, 40)  # every row its own number; 3:4 or more is asked for
    for result in results("crop", ramp, 5):
        kept = result[0, -1, 0] - result[0, 0, 0]
        assert 48 <= kept <= 54  # 40 / (3 / 4) rows
        assert result[0].mean() == pytest.approx(49.5, abs=1)


def test_bytes_stay_bytes_and_evaluation_changes_nothing():
    images = (torch.rand(4, 3, *SIZE, generator=seeded()) * 255).byte()
    augment = AugmentationPool()
    assert augment(images, seeded()).dtype == torch.uint8
    assert augment.eval()(images) is images


def test_draws_follow_the_generator():
    images = picture()[None].expand(8, -1, -1, -1)
    augment = AugmentationPool()
    assert torch.equal(augment(images, seeded(1)), augment(images, seeded(1)))
    assert not torch.equal(augment(images, seeded(1)), augment(images, seeded(2)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"number": -1}, "number=-1 should be a whole number of operations"),
        ({"operations": ["flipp"]}, "operation of the pool 'flipp' unknown .did you mean flip"),
        ({"operations": []}, "should be one or more of jitter"),
        ({"ratio": (2.0, 1.0)}, "should be the least and the largest"),
    ],
)
def test_bad_options_are_one_line(options, message):
    with pytest.raises(InputError, match=message):
        AugmentationPool(**options)


def test_it_prints_its_hyper_parameters():
    printed = repr(AugmentationPool(number=3, operations=["crop", "flip"], ratio=(0.4, 0.6)))
    assert "number=3, operations=crop, flip, ratio=(0.4, 0.6)" in printed
