import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """The arrays here are small; two threads only wait for each other."""
    torch.set_num_threads(1)
