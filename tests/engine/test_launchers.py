"""Who has started a process: nobody, torchrun, srun or mpirun, and what each tells it of its place."""

import pytest
from launch_cases import OF_SRUN, arguments

from agreid_plugin.engine.distributed.environment import (
    NEEDED,
    find_launcher,
    first_node,
    parse_address,
    read_rank_info,
    tasks_on,
)
from agreid_plugin.errors import InputError

OF_TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "29400",
}
OF_MPI = {f"OMPI_COMM_WORLD_{name}": "2" for name in ("SIZE", "LOCAL_SIZE")} | {
    f"OMPI_COMM_WORLD_{name}": "1" for name in ("RANK", "LOCAL_RANK")
}


@pytest.fixture
def environment(monkeypatch):
    """Take away what any launcher would set, and set what one does."""
    for name in {*OF_TORCHRUN, *OF_SRUN, *OF_MPI, *(name for names, _ in NEEDED.values() for name in names)}:
        monkeypatch.delenv(name, raising=False)

    def told(values: dict[str, str]) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return told


def test_nobody(environment):
    environment({})
    assert find_launcher(arguments(None)) == "none"
    assert read_rank_info("none").world_size == 1
    with pytest.raises(InputError, match=r"--launcher slurm: SLURM_PROCID is not set; start the command as srun"):
        find_launcher(arguments(None, launcher="slurm"))


def test_torchrun(environment):
    environment(OF_TORCHRUN)
    assert find_launcher(arguments(None)) == "pytorch"
    place = read_rank_info("pytorch")
    assert (place.rank, place.world_size, place.local_rank, place.local_size, place.machine) == (3, 4, 1, 2, 1)
    assert (place.address, place.port, place.opens, place.attempt) == ("node7", 29400, False, 2)
    with pytest.raises(InputError, match="leave out --num-gpus"):
        find_launcher(arguments(2))
    assert find_launcher(arguments(2, launcher="none")) == "none"
    with pytest.raises(InputError, match="torchrun has its own, give it --master-addr"):
        read_rank_info("pytorch", "tcp://10.0.0.1:29500")


def test_torchrun_without_a_store_has_process_0_open_one(environment):
    environment({**OF_TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False", "RANK": "0"})
    assert read_rank_info("pytorch").opens
    environment({"RANK": "first"})
    with pytest.raises(InputError, match=r"--launcher pytorch: a variable of its environment is no number: .*first"):
        read_rank_info("pytorch")


def test_srun(environment):
    environment(OF_SRUN)
    assert find_launcher(arguments(None)) == "slurm"
    place = read_rank_info("slurm")
    assert (place.rank, place.world_size, place.local_rank, place.local_size, place.machine) == (4, 5, 0, 1, 2)
    assert (place.address, place.port, place.opens) == ("gpu07", 24711, False)
    assert read_rank_info("slurm", "tcp://10.0.0.1:29500").address == "10.0.0.1"
    environment({"MASTER_ADDR": "login", "MASTER_PORT": "1234"})
    assert (read_rank_info("slurm").address, read_rank_info("slurm").port) == ("login", 1234)
    assert find_launcher(arguments(4, num_machines=2)) == "none"  # it is asked for processes of its own


@pytest.mark.parametrize(
    "alone",
    [
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_NODELIST": "a"},  # a batch script
        {**OF_SRUN, "SLURM_NTASKS": "1"},
        {**OF_SRUN, "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"},  # an interactive shell of a large job
    ],
)
def test_one_task_of_slurm_is_no_distributed_run(environment, alone):
    environment(alone)
    assert find_launcher(arguments(None)) == "none"


def test_mpi(environment):
    environment(OF_MPI)
    assert find_launcher(arguments(None)) == "none"
    assert find_launcher(arguments(None, launcher="mpi")) == "mpi"
    place = read_rank_info("mpi")
    assert (place.rank, place.world_size, place.address, place.opens) == (1, 2, "127.0.0.1", False)
    environment({"OMPI_COMM_WORLD_LOCAL_SIZE": "1"})
    with pytest.raises(InputError, match="on several machines: say where they meet, --dist-url"):
        read_rank_info("mpi")


def test_nodes_and_tasks_by_hand():
    nodes = {"node[03-05,9],gpu1": "node03", "gpu1,node[1-2]": "gpu1", "n1": "n1", "r[1-2]n[03-04]": "r1n03"}
    nodes["a[7,9]"] = "a7"
    assert {text: first_node(text) for text in nodes} == nodes
    assert [tasks_on("2(x3),1", node) for node in range(4)] == [2, 2, 2, 1]
    assert tasks_on("8", 0) == 8


def test_where_machines_meet():
    assert parse_address("tcp://10.0.0.1:29500") == ("10.0.0.1", 29500)
    for url in ("10.0.0.1", "tcp://10.0.0.1", "tcp://10.0.0.1:port", "http://10.0.0.1:80", "tcp://[::1"):
        with pytest.raises(InputError, match=r"should be like tcp://10.0.0.1:29500"):
            parse_address(url)
