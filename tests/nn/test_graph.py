import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from agreid_plugin.errors import InputError
from agreid_plugin.methods.visa import reference
from agreid_plugin.nn.graph import QueryGraph, compute_cosines, compute_query_row, find_nearest_patches

QUERY = torch.tensor([[[1.0, 0.0]]])
PATCHES = torch.tensor([[[3.0, 4.0], [2.0, 0.0]]])
# Cosines: query to patches 0.6 and 1, patch to patch 0.6. A = max(C, 0) + I has the rows
#   (2, 0.6, 1), (0.6, 2, 0.6), (1, 0.6, 2) and the degrees 3.6, 3.2, 3.6.
OWN, OTHERS = 2 / 3.6, [0.6 / math.sqrt(3.6 * 3.2), 1 / 3.6]

TOLERANCES = [(torch.float32, 1e-6), (torch.float64, 1e-12)]


def random_graphs(seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Three images of four queries and seven patches; about half of the cosines are negative."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(3, 11, 5, generator=generator, dtype=torch.float64).to(dtype)
    return values[:, :4], values[:, 4:]


def chosen_mask(nearest: Tensor, patches: int) -> Tensor:
    return torch.nn.functional.one_hot(nearest, patches).sum(dim=2).bool()


def slow_rows(queries: Tensor, patches: Tensor, nearest: Tensor) -> tuple[Tensor, Tensor]:
    """Row 0 of each graph's whole matrix, put back where the patches stand."""
    own, others = (
        torch.zeros(queries.shape[:2]).to(queries),
        torch.zeros(*queries.shape[:2], patches.shape[1]).to(queries),
    )
    for image in range(len(queries)):
        for number, query in enumerate(queries[image]):
            index = nearest[image, number]
            row = reference.normalize_adjacency(torch.cat([query[None], patches[image, index]]))[0]
            own[image, number], others[image, number, index] = row[0], row[1:]
    return own, others


def test_cosines_by_hand():  # Eq. 9
    expected = torch.tensor([[[0.6, 1.0]]])
    torch.testing.assert_close(compute_cosines(QUERY, PATCHES), expected)
    torch.testing.assert_close(compute_cosines(PATCHES, -7 * QUERY), -expected.mT)


def test_a_row_by_hand():  # Eqs. 10-12
    own, others = compute_query_row(QUERY, PATCHES)
    assert own.tolist() == [[pytest.approx(OWN)]]
    assert others.tolist() == [[pytest.approx(OTHERS)]]


def test_a_row_of_chosen_patches_by_hand():
    # The first patch alone: rows (2, 0.6) and (0.6, 2), both degrees 2.6.
    own, others = compute_query_row(QUERY, PATCHES, torch.tensor([[[True, False]]]))
    assert own.tolist() == [[pytest.approx(2 / 2.6)]]
    assert others.tolist() == [[pytest.approx([0.6 / 2.6, 0.0])]]


def test_opposite_patches_are_no_neighbors_by_hand():
    # (-1, 0) is at -1 to the query and -0.6 to (3, 4): it counts for nobody, and nobody for it.
    patches = torch.tensor([[[3.0, 4.0], [-1.0, 0.0]]])
    own, others = compute_query_row(QUERY, patches)
    assert own.tolist() == [[pytest.approx(2 / 2.6)]]
    assert others.tolist() == [[pytest.approx([0.6 / 2.6, 0.0])]]


def test_the_layer_by_hand():  # Eq. 12
    graph = QueryGraph(2)
    with torch.no_grad():
        graph.weight.copy_(torch.tensor([[0.0, 0.5], [1.0, 0.0]]))
    # X W swaps the two numbers and halves what was first.
    first, second = OWN + 3 * OTHERS[0] + 2 * OTHERS[1], 4 * OTHERS[0]
    expected = [math.tanh(second), math.tanh(first / 2)]
    assert graph(QUERY, PATCHES).tolist() == [[pytest.approx(expected)]]


@pytest.mark.parametrize("count", [1, 3, 7])
def test_nearest_patches_equal_a_loop(count):  # Eq. 8
    queries, patches = random_graphs(0)
    nearest = find_nearest_patches(queries, patches, count)
    assert nearest.shape == (3, 4, count)
    for image in range(3):
        for number, query in enumerate(queries[image]):
            near = [(query @ patch / (query.norm() * patch.norm())).item() for patch in patches[image]]
            assert nearest[image, number].tolist() == sorted(range(7), key=lambda i, near=near: -near[i])[:count]


def test_more_patches_than_there_are_is_named():
    with pytest.raises(InputError, match=r"count=8 .* 7"):
        find_nearest_patches(*random_graphs(0), 8)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("seed", range(3))
def test_rows_of_own_patches_equal_the_reference_form(seed, dtype, tolerance):
    queries, patches = random_graphs(seed, dtype)
    nearest = find_nearest_patches(queries, patches, 3)
    rows = compute_query_row(queries, patches, chosen_mask(nearest, 7))
    torch.testing.assert_close(rows, slow_rows(queries, patches, nearest), rtol=0, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("seed", range(3))
def test_rows_of_shared_patches_equal_the_reference_form(seed, dtype, tolerance):
    queries, patches = random_graphs(seed, dtype)
    everything = torch.arange(7).expand(3, 4, 7)
    rows = compute_query_row(queries, patches)
    torch.testing.assert_close(rows, slow_rows(queries, patches, everything), rtol=0, atol=tolerance)
    torch.testing.assert_close(compute_query_row(queries, patches, torch.ones(3, 4, 7, dtype=torch.bool)), rows)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@torch.no_grad()
def test_the_layer_equals_the_reference_form(dtype, tolerance):
    torch.manual_seed(0)
    graph, (queries, patches) = QueryGraph(5).to(dtype), random_graphs(4, dtype)
    nearest = find_nearest_patches(queries, patches, 4)
    moved = graph(queries, patches, chosen_mask(nearest, 7))
    for image in range(3):
        for number, query in enumerate(queries[image]):
            expected = reference.move_query(graph.weight, query, patches[image, nearest[image, number]])
            torch.testing.assert_close(moved[image, number], expected, rtol=0, atol=tolerance)


@torch.no_grad()
def test_images_do_not_mix_and_order_does_not_matter():
    graph, (queries, patches) = QueryGraph(5).double(), random_graphs(5)
    moved = graph(queries, patches)
    torch.testing.assert_close(graph(queries[1:2], patches[1:2]), moved[1:2])
    torch.testing.assert_close(graph(queries.flip(1), patches), moved.flip(1))
    torch.testing.assert_close(graph(queries, patches.flip(1)), moved)


@pytest.mark.parametrize("own_patches", [True, False])
def test_gradient_of_the_layer(own_patches):
    graph, (queries, patches) = QueryGraph(5).double(), random_graphs(6)
    queries, patches = queries[:1, :2].clone().requires_grad_(), patches[:1, :4].clone().requires_grad_()
    mask = chosen_mask(find_nearest_patches(queries, patches, 2), 4) if own_patches else None
    assert gradcheck(lambda *_: graph(queries, patches, mask), (queries, patches, graph.weight))


def test_cosines_and_degrees_in_float32_inside_autocast():
    graph, (queries, patches) = QueryGraph(5), random_graphs(7, torch.bfloat16)
    expected = graph(queries.float(), patches.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        moved = graph(queries, patches)
    torch.testing.assert_close(moved.float(), expected, rtol=0, atol=2e-2)  # the last product alone is in bfloat16
