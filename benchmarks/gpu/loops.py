"""Small training loops in PyTorch, with data made on the spot: a step each, to be called again and again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

Step = Callable[[], None]
STEP_S, GAP_S = 1.5, 0.2
"""Of a step, about: long enough for sensors that tell something new ten times a second; and of what the host
takes in it to get new data, which leaves the GPU waiting, so that a step shows."""
WARM, TIMED = 2, 8
"""Batches, and steps, that are not timed, for libraries load and the optimiser makes its state; and batches
that tell how long one takes."""


def perceptron(torch: Any) -> Step:
    """Four wide layers: products of matrices."""
    layers = [torch.nn.Linear(4096, 4096), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, *_again(torch, 3), torch.nn.Linear(4096, 1000)).cuda()
    return _step(torch, model, lambda: torch.randn(4096, 4096, device="cuda"), 1000)


def _again(torch: Any, times: int) -> list[Any]:
    return [layer for _ in range(times) for layer in (torch.nn.Linear(4096, 4096), torch.nn.ReLU())]


def convolutional(torch: Any) -> Step:
    """Convolutions and norms, as in a ResNet's first stages."""
    nn = torch.nn
    widths = (3, 64, 128, 256)
    layers: list[Any] = []
    for inside, outside in itertools.pairwise(widths):
        layers += [nn.Conv2d(inside, outside, 3, stride=2, padding=1), nn.BatchNorm2d(outside), nn.ReLU()]
        layers += [nn.Conv2d(outside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100)).cuda()
    return _step(torch, model, lambda: torch.randn(128, 3, 112, 112, device="cuda"), 100)


def transformer(torch: Any) -> Step:
    """Attention and feed-forward layers, in bfloat16."""
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
    body = nn.TransformerEncoder(layer, 6)
    model = nn.Sequential(body, nn.Flatten(), nn.Linear(128 * 768, 100)).cuda()
    return _step(torch, model, lambda: torch.randn(32, 128, 768, device="cuda"), 100, half=True)


LOOPS: dict[str, Callable[[Any], Step]] = {
    "perceptron": perceptron,
    "convolutional": convolutional,
    "transformer": transformer,
}


def _step(torch: Any, model: Any, draw: Callable[[], Any], classes: int, half: bool = False) -> Step:
    """A training step of as many batches as take `STEP_S` here, with an optimiser at its end; warmed up."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loss_of = torch.nn.CrossEntropyLoss()

    def train(batches: int) -> None:
        inputs = draw()
        labels = torch.randint(0, classes, (inputs.shape[0],)).cuda()
        for _ in range(batches):
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
                loss = loss_of(model(inputs), labels)
            loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        float(loss)

    train(WARM)
    began = time.monotonic()
    train(TIMED)
    batches = max(1, round(STEP_S * TIMED / (time.monotonic() - began)))

    def step() -> None:
        train(batches)
        time.sleep(GAP_S)

    for _ in range(WARM):
        step()
    return step
