"""Explain a choice by the boosted model: exact SHAP values of its trees (Lundberg and others,
arXiv 1802.03888), best schedule minus fastest. They add up to the difference of the two predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ekc.boosted_trees import compute_contributions
from ekc.devices.device import Device
from ekc.ir.analysis.analysis import analyse_program
from ekc.search.cost_model.boosted_prior import INPUT_NAMES, LATENCY_INPUT, BoostedPrior, add_latency
from ekc.search.cost_model.feature_table import FEATURE_NAMES
from ekc.search.cost_model.features import build_features, compute_features, scale_power
from ekc.search.data.candidate import Candidate
from ekc.search.data.explanation import EnergyExplanation, FeaturePart


def explain_choice(
    best: Candidate, fastest: Candidate, device: Device, booster: BoostedPrior | None
) -> EnergyExplanation | None:
    """Explain the energy of the best schedule against the fastest; None without a booster, and where it does
    not correct the prior of the device."""
    if booster is None:
        return None
    schedules = best.schedule, fastest.schedule
    analyses = [analyse_program(s.program, device.limits) for s in schedules]
    quantities = {name: np.concatenate([a[name] for a in analyses]) for name in analyses[0]}
    prior = device.prior(quantities)
    if not prior.resource_times_s:
        return None
    inputs = booster.make_inputs(build_features(quantities), prior)
    log_latency = booster.predict_latency(inputs)
    rows = add_latency(inputs, log_latency)
    of_energy = compute_contributions(booster.models.energy, rows).astype(np.float64)
    of_latency = compute_contributions(booster.models.latency, inputs).astype(np.float64)
    of_energy[:, :-1] += of_latency
    energy_j = prior.latency_s * scale_power(prior.power_w, log_latency, prior.standby_w)
    values = rows.astype(np.float64).T
    values[: len(FEATURE_NAMES)] = compute_features(quantities)
    values[len(FEATURE_NAMES) : -1] = np.exp2(values[len(FEATURE_NAMES) : -1])
    values[-1] = np.exp(log_latency)
    parts = [
        FeaturePart(name, float(a), float(b), float(part))
        for name, (a, b), part in zip(
            (*INPUT_NAMES, LATENCY_INPUT), values, of_energy[0] - of_energy[1], strict=True
        )
    ]
    a_j, b_j = energy_j.tolist()
    parts.append(FeaturePart("analytic prior [J]", a_j, b_j, math.log(a_j / b_j)))
    return EnergyExplanation(
        tuple(sorted(parts, key=lambda part: -abs(part.log_part))),
        sum(part.log_part for part in parts),
        _measure_log_ratio((best, fastest)),
    )


def _measure_log_ratio(pair: Sequence[Candidate]) -> float:
    if not all(c.metered for c in pair):
        return math.nan
    best, fastest = (c.energy_j for c in pair)
    return math.log(best / fastest)
