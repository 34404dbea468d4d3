"""Savings of a governed job for its report: joules, kWh, percent, money and CO2, with 95 % intervals."""

from __future__ import annotations

from dataclasses import dataclass

from ekc.governor.accounting import Accounted, StaticLimit
from ekc.governor.request import JOULES_PER_KWH, Tariff


@dataclass(frozen=True)
class Savings:
    """Net savings of a job, its search and checks billed. `low_`, `high_`: ends of the 95 % interval."""

    joules: float
    """Joules that the same work would have cost at the default, less those that it took."""
    low_j: float
    high_j: float
    kwh: float
    share: float
    """Share of what the default would have cost."""
    low_share: float
    high_share: float
    cost_j: float
    """Cost of search, checks and earlier choices: joules that the final choices would have saved beyond
    `joules`, held from the start."""
    money: float | None
    """Money saved, in `currency`; None without a price."""
    currency: str
    co2_g: float | None
    """Grams of CO2 saved; None without an intensity."""
    static: StaticLimit | None
    """The best limit for the whole job, as the fitted curves estimate it."""

    def format_rows(self) -> list[tuple[str, str]]:
        """Rows of the report: name and text."""
        share = f"{self.share:.1%} of what the default would have cost"
        shares = f"{self.low_share:.1%} to {self.high_share:.1%}"
        rows = [
            ("saved net", f"{self.joules:,.0f} J, {format_kwh(self.kwh)}, {share}"),
            ("", f"95 %: {shares}, {self.low_j:,.0f} to {self.high_j:,.0f} J"),
        ]
        worth = []
        if self.money is not None:
            worth.append(f"{self.money:.{2 if abs(self.money) >= 1 else 4}f} {self.currency}")
        if self.co2_g is not None:
            worth.append(f"{self.co2_g:,.{0 if abs(self.co2_g) >= 100 else 1}f} g CO2")
        if worth:
            rows.append(("worth", ", ".join(worth)))
        rows.append(("billed in it", f"search, checks and earlier choices: {self.cost_j:,.0f} J"))
        if self.static is not None:
            rows.append(("best static", self.static.format()))
        return rows


def format_kwh(kwh: float) -> str:
    """kWh for people: three digits after the point, more below a hundredth."""
    return f"{kwh:,.{3 if abs(kwh) >= 0.01 else 5}f} kWh"


def make_savings(account: Accounted, tariff: Tariff) -> Savings:
    """The savings of an account."""
    low_share, high_share = account.share_interval
    return Savings(
        joules=account.saved_j,
        low_j=account.saved_j - account.half_width_j,
        high_j=account.saved_j + account.half_width_j,
        kwh=account.saved_j / JOULES_PER_KWH,
        share=account.saved_share,
        low_share=low_share,
        high_share=high_share,
        cost_j=account.cost_j,
        money=tariff.compute_money(account.saved_j),
        currency=tariff.currency,
        co2_g=tariff.compute_grams(account.saved_j),
        static=account.static,
    )
