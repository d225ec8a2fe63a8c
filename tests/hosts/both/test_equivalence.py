"""One process with a batch of 32 and two with 16 each: the same losses and gradients, where a loss is the batch's."""

import pytest
import torch
from equivalence_cases import LOCAL, METHODS, SHARES, WHOLE, batch, cases, compute, learned, share
from launch_cases import arguments

from agreid_plugin.engine.distributed import launch

pytestmark = pytest.mark.both_hosts
CLOSE = {"rtol": 1e-8, "atol": 1e-11}  # of float64, added up in another order
GATHERED = ("triplet", "vial", "nitc", "ritc", "sdm", "balance")


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """What two processes computed of every case, in the order of their ranks."""
    folder = tmp_path_factory.mktemp("processes")
    launch.launch(compute, (str(folder),), arguments(SHARES))
    return [torch.load(folder / f"{rank}.pt") for rank in range(SHARES)]


def averaged(values: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    assert len({tuple(each) for each in values}) == 1
    return {name: sum(each[name] for each in values) / len(values) for name in values[0]}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", [*METHODS, *WHOLE])
def test_two_processes_have_the_loss_and_gradients_of_one(processes, name):
    terms, gradients = learned(cases()[name](), batch())
    assert sum(value.abs().sum() > 0 for value in gradients.values()) > 1
    for of_process in processes:
        assert_same(of_process[name][1], gradients)
    assert_same(averaged([each[name][0] for each in processes]), terms)
    for term, value in terms.items():
        if any(part in term for part in GATHERED):  # known to every process, not to their average alone
            assert all(torch.allclose(each[name][0][term], value, **CLOSE) for each in processes)


@pytest.mark.parametrize("name", [*LOCAL, "own statistics"])
def test_what_is_local_is_the_mean_over_the_shares(processes, name):
    """Triplets that are not gathered, the host's own losses, and batch norms: each process has its own."""
    shares = [learned(cases()[name](), share(batch(), number)) for number in range(SHARES)]
    for of_process in processes:
        assert_same(of_process[name][1], averaged([gradients for _, gradients in shares]))
    whole, _ = learned(cases()[name](), batch())
    mean = averaged([terms for terms, _ in shares])
    assert any(abs(mean[term] - value) > 1e-6 for term, value in whole.items())


def test_batch_norms_keep_the_statistics_of_their_own_process(processes):
    for number, of_process in enumerate(processes):
        alone = cases()["own statistics"]()
        alone(share(batch(), number))
        assert_same(of_process["buffers"], dict(alone.named_buffers()))
    means = [each["buffers"]["inner.head.norm.running_mean"] for each in processes]
    assert not torch.allclose(*means)
