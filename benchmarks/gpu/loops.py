"""Small training loops in PyTorch, with data made on the spot: a step each, to be called again and again.

They differ in what a step looks like to a power sensor; `Loop.shows` says which case of period detection each
of them is.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Step = Callable[[], None]
Work = Callable[[int], None]
"""Does a number of repetitions on the GPU, and returns when they are finished."""
STEP_S, GAP_S = 1.5, 0.2
"""Seconds of a step, about: long enough for sensors with ten updates a second. Seconds in it in which the
host gets new data and the GPU waits, so that a step is visible."""
WARM, TIMED = 2, 8
"""Repetitions, and steps, that are not timed, for libraries load and the optimiser makes its state; and
repetitions that tell how long one takes."""
MICRO, MICRO_GAP_S = 4, 0.1
"""Micro-batches of a step, and what the host takes before each of them."""
WAIT_S, SHARD_S, SHARD = (0.1, 0.4), 1.0, 8
"""A wait for data that is never the same, and what every so many-th step waits besides."""


@dataclass(frozen=True)
class Place:
    """Where a loop is trained."""

    torch: Any
    device: str
    seed: int
    step_s: float = STEP_S
    shrink: int = 1
    """Divisor of widths and batches: tests train on a CPU."""

    def scale(self, full: int) -> int:
        """Scale a width or a batch size."""
        return full // self.shrink

    def make_normal(self, *shape: int) -> Any:
        """Make a tensor of normal random numbers."""
        return self.torch.randn(*shape, device=self.device)

    def make_classes(self, count: int, *shape: int) -> Any:
        """Make a tensor of random class numbers."""
        return self.torch.randint(0, count, shape, device=self.device)

    def count_repeats(self, work: Work, share: float) -> int:
        """Number of repetitions that take `share` of a step here, after a warm-up."""
        work(WARM)
        began = time.monotonic()
        work(TIMED)
        return max(1, round(share * self.step_s * TIMED / (time.monotonic() - began)))


@dataclass(frozen=True)
class Loop:
    """A training loop."""

    make: Callable[[Place], Step]
    shows: str
    """The difficulty for period detection that the loop has."""

    def make_step(self, place: Place) -> Step:
        """Make the step function, seeded and warmed up."""
        place.torch.manual_seed(place.seed)
        step = self.make(place)
        for _ in range(WARM):
            step()
        return step


def make_perceptron_step(place: Place) -> Step:
    """Four wide layers: products of matrices."""
    return _make_paused_step(place, _make_dense_work(place, place.scale(4096)))


def make_convolutional_step(place: Place) -> Step:
    """Convolutions and norms, as in a ResNet's first stages."""
    nn = place.torch.nn
    widths = (3, *map(place.scale, (64, 128, 256)))
    layers: list[Any] = []
    for inside, outside in itertools.pairwise(widths):
        layers += [nn.Conv2d(inside, outside, 3, stride=2, padding=1), nn.BatchNorm2d(outside), nn.ReLU()]
        layers += [nn.Conv2d(outside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 100))
    images, side = place.scale(128), place.scale(112)
    return _make_paused_step(
        place, _make_classifier_work(place, model, lambda: place.make_normal(images, 3, side, side), 100)
    )


def make_transformer_step(place: Place) -> Step:
    """Attention and feed-forward layers, in bfloat16."""
    nn, wide, long = place.torch.nn, place.scale(768), place.scale(128)
    model = nn.Sequential(_make_encoder(place, wide, 12), nn.Flatten(), nn.Linear(long * wide, 100))
    batch = place.scale(32)
    return _make_paused_step(
        place,
        _make_classifier_work(place, model, lambda: place.make_normal(batch, long, wide), 100, half=True),
    )


def make_accumulated_step(place: Place) -> Step:
    """Residual blocks; gradients of four micro-batches, each of which waits for its data, then an update."""
    torch, wide = place.torch, place.scale(128)
    nn = torch.nn
    first, last = nn.Conv2d(3, wide, 3, stride=2, padding=1), nn.Linear(wide, 100)
    blocks = [_make_residual_block(torch, wide) for _ in range(4)]
    model = nn.Sequential(first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last).to(place.device)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    images, side = place.scale(128), place.scale(64)

    def work(batches: int) -> None:
        inputs, labels = place.make_normal(images, 3, side, side), place.make_classes(100, images)
        for _ in range(batches):
            loss = loss_of(model(inputs), labels)
            loss.backward()
        loss.item()

    batches = place.count_repeats(work, 1 / MICRO)

    def step() -> None:
        for _ in range(MICRO):
            time.sleep(MICRO_GAP_S)
            work(batches)
        optimiser.step()
        optimiser.zero_grad()
        time.sleep(GAP_S)

    return step


def make_starved_step(place: Place) -> Step:
    """A perceptron of large batches, whose data come late: never after the same time, and sometimes much."""
    work = _make_dense_work(place, place.scale(16384))
    batches = place.count_repeats(work, 1.0)
    waits, numbers = random.Random(place.seed), itertools.count(1)

    def step() -> None:
        work(batches)
        time.sleep(waits.uniform(*WAIT_S) + SHARD_S * (next(numbers) % SHARD == 0))

    return step


def make_recurrent_step(place: Place) -> Step:
    """A cell called word by word: kernels so small that the host cannot launch them fast enough."""
    torch, inside, wide = place.torch, place.scale(256), place.scale(512)
    long, batch = place.scale(64), place.scale(64)
    cell, head = torch.nn.LSTMCell(inside, wide).to(place.device), torch.nn.Linear(wide, 100).to(place.device)
    optimiser = torch.optim.AdamW([*cell.parameters(), *head.parameters()], lr=1e-4)
    loss_of = torch.nn.CrossEntropyLoss()

    def draw() -> Any:
        return place.make_normal(long, batch, inside), place.make_classes(100, batch)

    def compute_loss(words: Any, labels: Any) -> Any:
        state = None
        for word in words:
            state = cell(word, state)
        return loss_of(head(state[0]), labels)

    return _make_paused_step(place, _make_updating_work(optimiser, draw, compute_loss))


def make_adversarial_step(place: Place) -> Step:
    """A judge, of convolutions, is trained for half a step; then a maker, of products. Nothing waits."""
    torch, wide, side = place.torch, place.scale(4096), place.scale(64)
    nn, some, rows = torch.nn, place.scale(64), place.scale(512)
    grow = nn.Linear(wide, 3 * side * side)
    maker = nn.Sequential(*_make_layers(torch, wide, 2), grow, nn.Tanh(), nn.Unflatten(1, (3, side, side)))
    narrow = nn.Conv2d(3, some, 4, stride=2, padding=1)
    deep = nn.Conv2d(some, 2 * some, 4, stride=2, padding=1)
    flat = nn.Linear(2 * some * (side // 4) ** 2, 1)
    judge = nn.Sequential(narrow, nn.LeakyReLU(0.2), deep, nn.LeakyReLU(0.2), nn.Flatten(), flat)
    maker, judge = maker.to(place.device), judge.to(place.device)
    makers, judges = (torch.optim.AdamW(one.parameters(), lr=1e-4) for one in (maker, judge))
    loss_of, real = nn.BCEWithLogitsLoss(), place.make_normal(rows, 3, side, side)
    yes, no = torch.ones(rows, 1, device=place.device), torch.zeros(rows, 1, device=place.device)

    def make() -> Any:
        with torch.no_grad():
            return (maker(place.make_normal(rows, wide)),)

    def compute_judge_loss(made: Any) -> Any:
        return loss_of(judge(real), yes) + loss_of(judge(made), no)

    def compute_maker_loss() -> Any:
        return loss_of(judge(maker(place.make_normal(rows, wide))), yes)

    judging = _make_updating_work(judges, make, compute_judge_loss)
    making = _make_updating_work(makers, tuple, compute_maker_loss)
    return _make_phased_step(place, (judging, 0.5), (making, 0.5))


def make_language_step(place: Place) -> Step:
    """A small model of language writes, word by word, then is trained. The GPU is never without work."""
    torch, wide, words = place.torch, place.scale(768), place.scale(8192)
    nn, long, batch = torch.nn, place.scale(256), place.scale(32)
    parts = nn.Embedding(words, wide), _make_encoder(place, wide, 12), nn.Linear(wide, words)
    look, body, tell = (part.to(place.device) for part in parts)
    parameters = itertools.chain(*(part.parameters() for part in (look, body, tell)))
    optimiser = torch.optim.AdamW(parameters, lr=1e-4)
    loss_of = nn.CrossEntropyLoss()
    causal = nn.Transformer.generate_square_subsequent_mask(long, device=place.device)

    def model(text: Any) -> Any:
        size = text.shape[1]
        with torch.autocast(place.device, dtype=torch.bfloat16):
            return tell(body(look(text), mask=causal[:size, :size], is_causal=True))

    def writing(count: int) -> None:
        text = place.make_classes(words, 4, long // 4)
        with torch.no_grad():
            for _ in range(count):
                chosen = model(text)[:, -1:].argmax(-1)
                text = torch.cat([text[:, 1:], chosen], 1)
        int(text[0, -1])

    def compute_loss(text: Any) -> Any:
        logits = model(text)[:, :-1]
        return loss_of(logits.reshape(-1, words).float(), text[:, 1:].reshape(-1))

    training = _make_updating_work(optimiser, lambda: (place.make_classes(words, batch, long),), compute_loss)
    return _make_phased_step(place, (writing, 0.4), (training, 0.6))


LOOPS = {
    "perceptron": Loop(make_perceptron_step, "even work and an even wait: the plain case, at full power"),
    "convolutional": Loop(make_convolutional_step, "the same with work that waits for memory: less power"),
    "accumulated": Loop(make_accumulated_step, "micro-batches that show: the step is four of them, not one"),
    "adversarial": Loop(
        make_adversarial_step, "two unlike phases and no wait: power alone distinguishes them"
    ),
    "starved": Loop(
        make_starved_step, "steps of uneven length, each eighth much longer: a period that is a mean"
    ),
    "recurrent": Loop(make_recurrent_step, "a GPU that hardly works: a faint signal"),
    "language": Loop(make_language_step, "never idle: utilisation is full throughout, power is not"),
    "transformer": Loop(make_transformer_step, "the plain case in bfloat16: another unit, another power"),
}
"""In this order: what little time is for differs most."""


def _make_dense_work(place: Place, rows: int) -> Work:
    """Four wide layers on batches of so many rows."""
    torch, wide = place.torch, place.scale(4096)
    model = torch.nn.Sequential(*_make_layers(torch, wide, 4), torch.nn.Linear(wide, 1000))
    return _make_classifier_work(place, model, lambda: place.make_normal(rows, wide), 1000)


def _make_layers(torch: Any, wide: int, times: int) -> list[Any]:
    return [layer for _ in range(times) for layer in (torch.nn.Linear(wide, wide), torch.nn.ReLU())]


def _make_encoder(place: Place, wide: int, heads: int) -> Any:
    layer = place.torch.nn.TransformerEncoderLayer(wide, heads, 4 * wide, batch_first=True)
    return place.torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


def _make_residual_block(torch: Any, wide: int) -> Any:
    nn = torch.nn

    class Residual(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            inner = [nn.Conv2d(wide, wide, 3, padding=1), nn.BatchNorm2d(wide)]
            self.body = nn.Sequential(*inner, nn.ReLU(), nn.Conv2d(wide, wide, 3, padding=1))

        def forward(self, x: Any) -> Any:
            return torch.relu(x + self.body(x))

    return Residual()


def _make_classifier_work(
    place: Place, model: Any, draw: Callable[[], Any], classes: int, half: bool = False
) -> Work:
    """New data; batches, whose gradients add up; an update."""
    torch = place.torch
    model = model.to(place.device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loss_of = torch.nn.CrossEntropyLoss()

    def work(batches: int) -> None:
        inputs = draw()
        labels = place.make_classes(classes, inputs.shape[0])
        for _ in range(batches):
            with torch.autocast(place.device, dtype=torch.bfloat16, enabled=half):
                loss = loss_of(model(inputs), labels)
            loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        loss.item()

    return work


def _make_updating_work(
    optimiser: Any, draw: Callable[[], tuple[Any, ...]], compute_loss: Callable[..., Any]
) -> Work:
    """New data; batches, each with an update."""

    def work(batches: int) -> None:
        data = draw()
        for _ in range(batches):
            loss = compute_loss(*data)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        loss.item()

    return work


def _make_paused_step(place: Place, work: Work) -> Step:
    """A step of as many repetitions as take its time here, then a wait for data."""
    return _make_phased_step(place, (work, 1.0), gap_s=GAP_S)


def _make_phased_step(place: Place, *phases: tuple[Work, float], gap_s: float = 0.0) -> Step:
    """A step of phases, each with its share of the time, one right after the other."""
    counted = [(work, place.count_repeats(work, share)) for work, share in phases]

    def step() -> None:
        for work, count in counted:
            work(count)
        time.sleep(gap_s)

    return step
