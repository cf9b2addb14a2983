"""memnet learns: many networks at once are each as if alone, the start is chosen blindly, and task 1 is learnt."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import real_data
from torch.optim import SGD
from training_runs import Killed, learning_of, numbers, trained

from fathom.core.errors import BadOption
from fathom.core.spec import RunSpec
from fathom.data import babi
from fathom.engine.base import clipping
from fathom.engine.engines.eager import Eager
from fathom.engine.session import Session
from fathom.training import checkpoint
from fathom.training.checkpoint import FOLDER
from fathom.training.trainer import held_out_for, recipe_for, trainer_for
from fathom.training.trainers.memnet import Ensemble, Facts, MemnetTrainer
from fathom.workloads.base import State
from fathom.workloads.memnet import Memnet

RECIPE = Memnet.recipe
TINY = {"task_number": 0, "starts": 2, "dimension": 4, "linear_epochs": 8, "epochs": 40, "batch": 4}


def write_tasks(folder: Path) -> Path:
    """Twenty tasks that differ in their words, in the length of their stories and in how many questions there are."""
    for task, name in enumerate(babi.TASKS, 1):
        place = f"{'abcdefghijklmnopqrst'[task - 1]}house"
        before = "".join(f"{number} Bob saw the {place}.\n" for number in range(1, task % 4 + 1))
        attic, cellar = (
            f"{before}{task % 4 + 1} Ada went to the {room}.\n{task % 4 + 2} Where is Ada?\t{room}\t{task % 4 + 1}\n"
            for room in ("attic", "cellar")
        )
        parts = {"train": (attic * 3 + cellar) * (1 + task % 2), "test": attic + cellar * (2 + task % 2)}
        for part, text in parts.items():
            (folder / f"qa{task}_{name}_{part}.txt").write_text(text)
    return folder


def tiny(folder: Path, **options: Any) -> RunSpec:
    data = str(write_tasks(folder))
    return RunSpec(workload="memnet", device="cpu", threads=1, kind="training", data=data, options={**TINY, **options})


def trainer(spec: RunSpec) -> MemnetTrainer:
    session = Session(spec).setup()
    recipe = recipe_for(spec)
    found = trainer_for(session, recipe, held_out_for(session, recipe))
    assert isinstance(found, MemnetTrainer)
    return found


def two_tasks() -> list[babi.Stories]:
    """Stories of four and of nine sentences, the shorter ones with fewer words."""
    short, long = babi.synthetic(3, memory=4, words=6, items=2), babi.synthetic(4, memory=9, words=8, items=40)
    assert len(short.vocabulary) < len(long.vocabulary)
    return [short, long]


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("encoding", ["paper", "program"])
def test_every_network_answers_as_if_it_were_alone(
    linear: bool, noise: float, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    tasks = two_tasks()
    workload = Memnet(batch=5, starts=2, noise=noise, encoding=encoding)
    ensemble = Ensemble(workload, tasks)
    with torch.no_grad():
        ensemble.table.mul_(5)  # so large that the softmax matters
    facts = Facts(workload, tasks, torch.device("cpu"))
    rows = facts.drawn(2, 5)
    chance = torch.rand(4, 5, 9)
    scores = ensemble(facts, rows, linear, chance < noise)
    for number in range(4):
        stories = tasks[number // 2]
        vocabulary, memory = len(stories.vocabulary), stories.columns["story"].shape[1]
        network = ensemble.network(number).train()
        network.linear = linear
        monkeypatch.setattr(torch, "rand", lambda *_, n=number, m=memory, **__: chance[n, :, :m])
        items = rows[number] - facts.first[number // 2]
        expected = network(stories.columns["story"][items], stories.columns["question"][items])[0]
        torch.testing.assert_close(scores[number, :, :vocabulary], expected, rtol=1e-4, atol=1e-4)
        assert (scores[number, :, vocabulary:] == -torch.inf).all(), "words that this task does not have"


def test_every_network_learns_as_if_it_were_alone() -> None:
    """Five updates of the stack are those of each network by the workload's own step, clipped by its own norm."""
    torch.manual_seed(0)
    tasks = two_tasks()
    workload = Memnet(batch=5, starts=2, noise=0.0, clip_norm=7.0)
    ensemble, facts = Ensemble(workload, tasks), Facts(workload, tasks, torch.device("cpu"))
    networks = [ensemble.network(number).train() for number in range(4)]
    optimizer = SGD(ensemble.parameters(), lr=0.05)
    drawn = [facts.drawn(2, 5) for _ in range(5)]
    norms = []
    for rows in drawn:
        optimizer.zero_grad()
        ensemble.losses(facts, rows, ensemble(facts, rows, False)).sum().backward()  # type: ignore[no-untyped-call]
        assert ensemble.table.grad is not None
        norms.append(ensemble.table.grad.flatten(1).norm(dim=1))
        ensemble.clip(7.0)
        optimizer.step()
    assert (torch.stack(norms) > 7).any()
    assert (torch.stack(norms) < 7).any(), "one network is clipped while another is not"
    for number, network in enumerate(networks):
        stories = tasks[number // 2]
        state = State(
            model=network,
            device=torch.device("cpu"),
            source=stories,
            batches=iter([stories[(rows[number] - facts.first[number // 2]).tolist()] for rows in drawn]),
            optimizer=SGD(network.parameters(), lr=0.05),
            autocast=nullcontext,
        )
        engine = Eager(state, partial(workload.loss, network), partial(workload.infer, network), clipping(state, 7.0))
        for batch in state.batches:
            engine.update(batch)
        for name, weight in ensemble.network(number).named_parameters():
            torch.testing.assert_close(weight, network.get_parameter(name), rtol=1e-4, atol=1e-5)


def test_batches_come_from_each_networks_own_task(tmp_path: Path) -> None:
    tasks = list(babi.read(write_tasks(tmp_path), task=0).per_task)
    facts = Facts(Memnet(batch=1), tasks, torch.device("cpu"))
    rows = facts.drawn(3, 1000).view(20, -1)
    first = 0
    for task, stories in enumerate(tasks):
        assert sorted(set(rows[task].tolist())) == list(range(first, first + len(stories)))
        first += len(stories)


def test_the_start_is_chosen_by_training_loss_and_evaluated_on_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One start always says attic, which is right in three of four training questions and in few of the test's."""
    monkeypatch.setattr(babi, "is_published", lambda *_: True)
    alone = trainer(tiny(tmp_path))
    tasks = alone.session.state.source.per_task
    with torch.no_grad():
        alone.model.table.zero_()
        alone.model.table[:, : alone.model.words, 0] = 1  # a question becomes a positive number
        for network in range(40):
            word = tasks[network // 2].vocabulary.index("attic" if network % 2 else "cellar")
            alone.model.table[network, word - 1, -4] = 1
        alone.model.table[6] = torch.nan  # a start that diverged is never chosen
    alone.steps_done = alone.linear_steps
    odd, even = 100 * 3 / 4, 100 * 2 / 3  # of the test, cellar is right in so many
    assert alone.validate() == pytest.approx(25), "the curve is of the training questions"
    error, (table, *looks) = alone.test()
    assert error == pytest.approx((odd + even) / 2)
    assert table.columns[:3] == ["task", "error (%)", "published (%)"]
    assert table.rows[0][:3] == ["1 single-supporting-fact", 75.0, 0.0]
    assert table.rows[3][:3] == ["4 two-arg-relations", 66.7, 2.8]
    assert table.rows[20][:3] == ["mean", 70.8, 13.9]
    assert [look.title.split(": ")[1] for look in looks] == ["where is ada? attic (right)"] * 4
    assert [row[0] for row in looks[1].rows] == ["ada went to the attic", "bob saw the bhouse", "bob saw the bhouse"]


def test_options_may_be_chosen_by_questions_that_are_neither_trained_on_nor_the_test(tmp_path: Path) -> None:
    attic, cellar = (f"1 Ada went to the {room}.\n2 Where is Ada?\t{room}\t1\n" for room in ("attic", "cellar"))
    for part, text in {"train": attic * 18 + cellar * 2, "test": attic}.items():
        (tmp_path / f"qa1_{babi.TASKS[0]}_{part}.txt").write_text(text)
    choosing, final = (Memnet.configured("tiny", evaluated_on=questions) for questions in ("valid", "test"))
    stories = RECIPE.evaluation_data(choosing, tmp_path, "validation")
    assert [stories.vocabulary[answer] for answer in stories.columns["answer"]] == ["cellar", "cellar"]
    assert [len(workload.real(tmp_path)) for workload in (choosing, final)] == [18, 20]


def test_joint_training_is_one_network_evaluated_task_by_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(babi, "is_published", lambda *_: True)
    joint = trainer(tiny(tmp_path, joint=True))
    assert joint.recipe.target == 12.4
    vocabulary, memory, _ = joint.model.sizes[0]
    assert joint.parameters == 2 * 4 * 4 * (vocabulary - 1 + memory) == joint.model.table.numel()
    assert joint.state.weights[0] is joint.model.table, "not those of the network it is in place of"
    with torch.no_grad():
        joint.model.table.zero_()
        joint.model.table[:, : joint.model.words, 0] = 1
        for network, answer in enumerate(("attic", "ahouse")):
            joint.model.table[network, joint.state.source.vocabulary.index(answer) - 1, -4] = 1
    error, (table, *_) = joint.test()
    assert error == pytest.approx(100 * (3 / 4 + 2 / 3) / 2)
    assert [row[2] for row in table.rows[:2]] == [0.0, 11.4], "beside the published joint errors"
    assert table.rows[20][:3] == ["mean", 70.8, 12.4]


@pytest.mark.parametrize(("task", "error"), [(1, 0.0), (4, 2.8), (19, 82.8)])
def test_a_task_alone_is_held_to_its_own_published_error(
    task: int, error: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(babi, "is_published", lambda *_: True)
    recipe = RECIPE.for_run(tmp_path, {"task_number": task})
    assert (recipe.metric, recipe.target) == ("error", error)
    assert f"the test questions of task {task} alone, {babi.TASKS[task - 1]};" in recipe.protocol
    assert "mean" not in recipe.protocol
    assert RECIPE.for_run(None, {"task_number": task}) is RECIPE, "synthetic stories are of no task"


@pytest.mark.parametrize(
    ("question", "questions", "target"),
    [("Where is Ada", 1000, 0.0), ("Ada kahan hai", 1000, None), ("Where is Ada", 10_000, None), ("Is Ada", 20, None)],
)
def test_the_published_errors_are_those_of_a_thousand_english_questions(
    question: str, questions: int, target: float | None, tmp_path: Path
) -> None:
    """Whatever the folder is called: bAbI comes in Hindi, too, and with ten thousand questions a task."""
    for part, items in {"train": questions, "test": 1000}.items():
        story = f"1 Ada went to the attic.\n2 {question}?\tattic\t1\n"
        (tmp_path / f"qa1_{babi.TASKS[0]}_{part}.txt").write_text(story * items)
    recipe = RECIPE.for_run(tmp_path, {"task_number": 1})
    told = "no target: that of 0 % is for bAbI's 1,000 English questions a task"
    assert (recipe.target, recipe.taken) == (target, told if target is None else "")
    assert RECIPE.for_run(tmp_path, {}).target is None, "of the other tasks there is nothing"


def test_no_published_error_stands_beside_that_of_other_questions(tmp_path: Path) -> None:
    table, *_ = trainer(tiny(tmp_path)).test()[1]
    assert [row[2] for row in table.rows] == [None] * 21


@pytest.mark.parametrize(("joint", "error"), [(False, 13.9), (True, 12.4)])
def test_all_tasks_are_held_to_the_published_mean(
    joint: bool, error: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(babi, "is_published", lambda *_: True)
    recipe = RECIPE.for_run(tmp_path, {"joint": joint})
    assert (recipe.target, recipe.split) == (error, "test")
    assert recipe.metric.startswith("mean error")
    assert "wrong answers to the test questions, a mean over the tasks" in recipe.protocol
    assert "valid" not in recipe.protocol


@pytest.mark.parametrize("name", ["evaluated_on", "judged_on"])  # the second is the old name
@pytest.mark.parametrize("options", [{}, {"joint": True}, {"task_number": 2}])
def test_no_target_is_published_for_validation(options: dict[str, Any], name: str, tmp_path: Path) -> None:
    tested = RECIPE.for_run(tmp_path, options)
    recipe = RECIPE.for_run(tmp_path, {**options, name: "valid"})
    assert (recipe.target, recipe.reached(0.0), recipe.split) == (None, None, "validation")
    assert recipe.metric == f"{tested.metric}, in validation"
    assert "the last tenth of the training questions" in recipe.protocol
    assert "test questions" not in recipe.protocol
    assert "all training questions are learnt" in tested.protocol
    assert "all training questions" not in recipe.protocol
    assert recipe.id != tested.id


def test_one_task_is_not_learnt_jointly(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="joint is one network for all tasks: leave task_number=3 out"):
        RECIPE.for_run(tmp_path, {"joint": True, "task_number": 3})


def test_linear_start_ends_and_the_rate_is_halved_in_time(tmp_path: Path) -> None:
    """48 epochs of eight questions, two steps each: 16 linear steps, then a halving after every ten epochs."""
    spec = replace(tiny(tmp_path, halving=10), evaluations=24)
    found = trainer(spec)
    assert (found.evaluations * found.steps_per_evaluation, found.linear_steps) == (96, 16)
    optimizer = found.state.optimizer
    assert optimizer is not None
    rates, linear = [], []

    def note(*_: object) -> None:
        rates.append(optimizer.param_groups[0]["lr"])
        linear.append(found.linear)

    optimizer.register_step_pre_hook(note)
    for _ in range(24):
        found.train(lambda done: None)
    assert linear == [True] * 16 + [False] * 80
    assert rates == [0.01] * 36 + [0.005] * 20 + [0.0025] * 20 + [0.00125] * 20
    assert (trainer(replace(spec, evaluations=6)).linear_steps) == 4, "a shorter run is the same run, faster"


@pytest.mark.parametrize("joint", [False, True])
def test_a_killed_run_resumes_to_the_very_same_numbers(
    joint: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(tiny(tmp_path, joint=joint), evaluations=6)
    monkeypatch.setenv(FOLDER, str(tmp_path / "checkpoints"))
    monkeypatch.setattr(checkpoint, "INTERVAL_S", 0.0)
    with pytest.raises(Killed):
        trained(spec, die_at=3)
    resumed = trained(spec)
    monkeypatch.delenv(FOLDER)
    whole = trained(spec)
    assert (learning_of(resumed).resumed, learning_of(whole).resumed) == (1, 0)
    assert numbers(resumed) == numbers(whole)
    assert learning_of(resumed).artifacts == learning_of(whole).artifacts


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.realdata)])
def test_learns_where_people_are(real: bool) -> None:
    """bAbI's first task, and synthetic stories like it: a short run of three starts suffices."""
    data = str(real_data("babi")) if real else None
    options = {"task_number": 1, "starts": 3, "learning_rate": 0.005}
    evaluations = 4 if real else 2  # there are twice as many synthetic questions
    spec = RunSpec(
        workload="memnet", device="cpu", threads=1, kind="training", evaluations=evaluations, data=data, options=options
    )
    learning = learning_of(trained(spec))
    assert learning.quality is not None
    assert learning.quality < 5
    assert learning.curve[-1].loss < learning.curve[0].loss / 4
