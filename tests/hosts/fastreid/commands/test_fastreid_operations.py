"""Operations that are counted, against numbers by hand."""

import pytest
import torch
from torch import nn

from agreid_plugin.engine.model_rows import count_operations
from agreid_plugin.nn.clip_build import build_clip

B, L, D = 2, 5, 8


@pytest.mark.parametrize("training", [True, False])
def test_all_of_attention_is_counted(training):
    """Projections of query, key, value and output, then products of L x L; without gradients torch makes one of all."""
    layer = nn.MultiheadAttention(D, num_heads=2, batch_first=True).train(training)
    tokens = torch.rand(B, L, D)
    with torch.no_grad(), count_operations() as counter:
        layer(tokens, tokens, tokens, need_weights=False)
    assert counter.get_total_flops() == 2 * B * (4 * L * D * D + 2 * L * L * D)


def test_a_tower_of_clip_by_hand():
    clip = build_clip(patch_size=4, width=D, heads=2, layers=3, embed_dim=D, image_size=(8, 8), text_layers=1)
    clip.image.eval()  # where torch would have its layers in one piece
    with torch.no_grad(), count_operations() as counter:
        clip.image(torch.rand(B, 3, 8, 8))
    tokens, stem = 5, 2 * B * 4 * (3 * 4 * 4) * D
    block = 2 * B * (4 * tokens * D * D + 2 * tokens**2 * D + 8 * tokens * D * D)
    assert counter.get_total_flops() == stem + 3 * block


def test_the_fast_path_is_as_it_was():
    for enabled in (True, False, True):
        torch.backends.mha.set_fastpath_enabled(enabled)
        with count_operations():
            pass
        assert torch.backends.mha.get_fastpath_enabled() is enabled
