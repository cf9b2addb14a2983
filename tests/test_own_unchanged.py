"""A user's module is bit-identical after profiling, whether a copy of it was profiled or itself, and if it fails."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import weight_norm

import fathom
from fathom.measure.own.state import independent_copy

pytestmark = pytest.mark.usefixtures("few_steps")
X = torch.randn(8, 4)


class Peculiar(nn.Module):
    """With everything that profiling might change."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.still = nn.BatchNorm1d(4), nn.BatchNorm1d(4).eval()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.count = 0
        self.history: list[int] = []
        self.cache: dict[str, Tensor] = {"scale": torch.ones(4)}
        self.torchs, self.pythons = torch.Generator().manual_seed(1), random.Random(2)
        self.numpys, self.old_numpys = np.random.default_rng(3), np.random.RandomState(4)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.count += 1
        self.history.append(self.count)
        self.cache["scale"].add_(0.1)
        self.cache["last"] = x.detach()
        noise = random.random() + float(np.random.rand()) + self.drawn()
        output: Tensor = self.head(self.frozen(self.still(self.norm(x)))) + noise
        return output

    def drawn(self) -> float:
        numpys = self.numpys.random() + float(self.old_numpys.random())
        return numpys + self.pythons.random() + float(torch.rand((), generator=self.torchs))

    def draws(self) -> list[Any]:
        numpys = [self.numpys.bit_generator.state, str(self.old_numpys.get_state())]
        return [self.pythons.getstate(), self.torchs.get_state().tolist(), *numpys]


class Locked(Peculiar):
    """Cannot be copied: a lock, and a tensor with a history."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.scaled = next(self.head.parameters()) * 2


class Shared(Peculiar):
    """A copy of it would still call the module that it was made for."""

    def __init__(self) -> None:
        super().__init__()
        self.detour: Callable[[Tensor], Tensor] = lambda x: self.head(x) + 1

    def forward(self, x: Tensor) -> Tensor:
        super().forward(x)
        return self.detour(x)


class Itself(Peculiar):
    """Says that its copy is itself."""

    def __deepcopy__(self, memo: object) -> Itself:
        return self


def condition(module: nn.Module) -> dict[str, Any]:
    """All that a user might find changed: tensors by their bytes and places, the rest by value."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    parts = dict(module.named_modules())
    return {
        "values": {name: tensor.detach().view(torch.uint8).tolist() for name, tensor in tensors.items() if tensor.ndim},
        "numbers": {name: tensor.item() for name, tensor in tensors.items() if not tensor.dim()},
        "places": {name: (id(tensor), tensor.data_ptr(), str(tensor.device)) for name, tensor in tensors.items()},
        "trained": {name: tensor.requires_grad for name, tensor in tensors.items()},
        "gradients": {name: id(tensor.grad) for name, tensor in tensors.items()},
        "gradient values": {name: tensor.grad.tolist() for name, tensor in tensors.items() if tensor.grad is not None},
        "modes": {name: part.training for name, part in parts.items()},
        "hooks": [len(value) for part in parts.values() for key, value in vars(part).items() if "hooks" in key],
        "attributes": {name: sorted(vars(part)) for name, part in parts.items()},
        "count": [getattr(module, "count", 0), list(getattr(module, "history", []))],
        "cache": {name: tensor.tolist() for name, tensor in getattr(module, "cache", {}).items()},
        "random": (torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())),
        "own random": module.draws() if isinstance(module, Peculiar) else [],
        "threads": torch.get_num_threads(),
    }  # fmt: skip


def used(module: nn.Module) -> nn.Module:
    """With gradients and statistics of its own."""
    module(X).sum().backward()
    return module


KINDS: dict[str, Callable[[], nn.Module]] = {
    "copied": Peculiar,
    "locked": Locked,
    "shared": Shared,
    "its own copy": Itself,
    "in evaluation mode": lambda: Peculiar().eval(),
    "weight normalisation": lambda: weight_norm(nn.Linear(4, 3)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("phase", ["train", "infer"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_users_module_is_left_as_it_was(kind: str, phase: str, precision: str) -> None:
    module, batch = used(KINDS[kind]()), X.clone()
    before = condition(module)
    fathom.profile(module, batch, phase=phase, device="cpu", precision=precision, threads=1, optimizer="adamw")
    after = condition(module)
    for part in before:
        assert after[part] == before[part], part
    assert torch.equal(batch, X)


def test_a_copy_is_taken_only_where_it_shares_nothing() -> None:
    assert independent_copy(Peculiar()) is not None
    hooked = Peculiar()
    hooked.register_forward_hook(lambda module, *_: None)
    assert independent_copy(hooked) is not None, "the hook holds on to nothing"
    assert [independent_copy(kind()) for kind in (Locked, Shared, Itself)] == [None, None, None]


def test_an_optimizer_of_the_users_own_is_put_back_with_its_module() -> None:
    module = Peculiar()
    optimizer = torch.optim.Adam(module.head.parameters(), lr=0.1)
    used(module)
    optimizer.step()
    state = {
        id(weight): {name: value.clone() for name, value in kept.items()} for weight, kept in optimizer.state.items()
    }
    before = condition(module)
    fathom.profile(module, X, device="cpu", optimizer=optimizer)
    assert condition(module) == before
    assert {id(weight) for weight in optimizer.state} == state.keys()
    for weight, kept in optimizer.state.items():
        assert {name: value.tolist() for name, value in kept.items()} == {
            name: value.tolist() for name, value in state[id(weight)].items()
        }


class Failing(Locked):
    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x)
        if self.count > 3:
            raise ValueError("enough")
        return output


@pytest.mark.parametrize("ending", [ValueError, KeyboardInterrupt])
def test_a_module_is_put_back_when_it_fails_on_the_way(
    ending: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = used(Failing())
    before = condition(module)

    def stop(*_: object, **__: object) -> None:
        raise ending

    if ending is KeyboardInterrupt:
        monkeypatch.setattr("fathom.measure.own.profile.profiled", stop)
    with pytest.raises(ending):
        fathom.profile(module, X, device="cpu", optimizer="adam")
    assert condition(module) == before


def test_a_lazy_module_stays_lazy_and_one_that_cannot_be_copied_is_told() -> None:
    lazy = nn.Sequential(nn.LazyLinear(3))
    fathom.profile(lazy, X, device="cpu")
    assert nn.parameter.is_lazy(next(lazy.parameters()))
    lazy.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(fathom.BadOption, match="has lazy layers and cannot be copied; call it once"):
        fathom.profile(lazy, X, device="cpu")


def moved(lock: bool) -> nn.Module:
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    if lock:
        module.lock = threading.Lock()  # type: ignore[assignment]
    return module


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("phase", ["train", "infer"])
@pytest.mark.parametrize("make", [lambda: moved(False), lambda: moved(True), lambda: weight_norm(nn.Linear(4, 3))])
def test_a_module_that_was_moved_to_a_gpu_is_back_where_it_was(make: Callable[[], nn.Module], phase: str) -> None:
    module = used(make())
    before, state = condition(module), torch.cuda.get_rng_state_all()
    fathom.profile(module, X, phase=phase, device="cuda", optimizer="adam")
    assert condition(module) == before
    assert all(torch.equal(one, other) for one, other in zip(torch.cuda.get_rng_state_all(), state, strict=True))


def test_a_sparse_buffer_beside_an_optimizer_is_put_back() -> None:
    class Sparse(nn.Module):
        graph: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("graph", torch.eye(8).to_sparse())
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.layer(torch.sparse.mm(self.graph, x))
            return found

    module = Sparse()
    before = module.layer.weight.detach().clone()
    fathom.profile(module, X, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
    assert torch.equal(module.layer.weight, before)
    assert module.layer.weight.grad is None
    assert torch.equal(module.graph.to_dense(), torch.eye(8))
