"""What a model does inside, where it has nothing to show."""

from types import SimpleNamespace

import pytest
from torch import nn

from agreid_plugin.errors import InputError
from agreid_plugin.visualize.introspection import compute_attention, find_chosen_patches


class Chooser(nn.Module):
    """Chooses patches of who knows what."""

    def chosen_patches(self, inputs, outputs):
        raise AssertionError("there is nothing to choose from")


@pytest.mark.parametrize(("look", "shown"), [(find_chosen_patches, "patches"), (compute_attention, "attention")])
def test_a_model_without_a_transformer_of_ours_is_refused(look, shown):
    model, settings = SimpleNamespace(network=nn.Sequential(Chooser())), SimpleNamespace(name="Mine")
    message = f"^Mine has no vision transformer of ours, whose {shown} could be shown$"
    with pytest.raises(InputError, match=message):
        look(SimpleNamespace(model=model, settings=settings), [])
