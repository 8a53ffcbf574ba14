"""How fast a machine computes, and what it draws: FLOPs → hours → kWh → CO2. Every assumption is a field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from latemask.ground.errors import UserError, nearest

DEFAULT_MFU = 0.4
DEFAULT_PUE = 1.2
DEFAULT_GRAMS_A_KWH = 445.0
_LEAST, _MOST = 1e-9, 1e9  # of whatever is assumed: any product of them is a number
WATTS_A_CORE = 15.0  # of a server's processor under load, with its share of the board


@dataclass(frozen=True)
class Device:
    """A GPU by its data sheet."""

    peak_tflops: float
    """Dense matrix products a second in bf16 (fp16 where there is none), in 10^12."""
    watts: float | None
    """What it draws at most."""
    gigabytes: float | None
    """Its memory."""
    half: str = "bf16"
    """The half precision that the peak is for."""


DEVICES = {
    "a10": Device(125, 150, 24),
    "a100": Device(312, 400, 80),
    "b200": Device(2250, 1000, 180),
    "h100": Device(989, 700, 80),
    "h200": Device(989, 700, 141),
    "l4": Device(121, 72, 24),
    "l40s": Device(362, 350, 48),
    "mi300x": Device(1307, 750, 192),
    "rtx3090": Device(71, 350, 24),
    "rtx4090": Device(165, 450, 24),
    "t4": Device(65, 70, 16, "fp16"),
    "v100": Device(125, 300, 32, "fp16"),
}


@dataclass(frozen=True)
class Machine:
    """What a run gets of one or several devices."""

    name: str
    peak: float
    """FLOP/s of one device's matrix products at best."""
    share: float
    """Share of the peak that a run gets (MFU)."""
    devices: int
    watts: float | None
    """What one device draws, where that is known."""
    pue: float
    """Energy of the whole building for each unit that the devices draw."""
    grams_a_kwh: float
    """CO2 of the grid."""
    memory: float | None
    """Bytes that one device has, where that is known."""
    half: bool
    """Whether it computes in mixed precision."""
    number: str = "fp32"
    """The numbers that its peak is for."""
    on_cpu: bool = False
    """Whether the program itself is in the same memory."""
    measured: bool = False
    """Whether the share was measured with this very recipe."""

    @property
    def speed(self) -> float:
        """FLOP/s that a run gets."""
        return self.peak * self.share * self.devices

    def hours(self, flops: float) -> float:
        """Return how long a run takes."""
        return flops / self.speed / 3600

    @property
    def kilowatts(self) -> float | None:
        """What all of it draws, the building included."""
        return None if self.watts is None else self.devices * self.watts / 1000 * self.pue


@dataclass(frozen=True)
class Assumptions:
    """What the user says about the machine; None takes the default."""

    device: str | None = None
    devices: int = 1
    peak_tflops: float | None = None
    mfu: float | None = None
    watts: float | None = None
    pue: float | None = None
    co2: float | None = None

    def check(self) -> None:
        """Refuse what cannot be."""
        for option in ("devices", "peak_tflops", "mfu", "watts"):
            value = getattr(self, option)
            if value is not None and not _LEAST <= value <= _MOST:
                name = option.replace("_", "-")
                raise UserError(f"--{name} is {value:.4g}; it must be positive, between {_LEAST:g} and {_MOST:g}")
        if self.co2 is not None and not 0 <= self.co2 <= _MOST:
            raise UserError(f"--co2 is {self.co2:.4g}; it must be between 0 and {_MOST:g}")
        if self.mfu is not None and self.mfu > 1:
            raise UserError(f"--mfu is {self.mfu}; it is a share of the peak, at most 1 (40 % is 0.4)")
        if self.pue is not None and not 1 <= self.pue <= _MOST:
            raise UserError(f"--pue is {self.pue}; a building draws at least what its machines draw: 1 or more")
        if self.device is not None and self.device.lower() not in DEVICES:
            raise UserError(
                f"unknown device '{self.device}'{nearest(self.device.lower(), DEVICES)}; there are "
                f"{', '.join(DEVICES)}; any other by --peak-tflops"
            )

    def machine(self, precision: str = "auto") -> Machine | None:
        """Return the device that was named or given by its peak; None where there is neither."""
        if self.device is None and self.peak_tflops is None:
            return None
        known = DEVICES[self.device.lower()] if self.device else Device(0.0, None, None)
        if self.peak_tflops is None and precision not in ("auto", known.half):
            raise UserError(
                f"--device {self.device} is known by its peak in {known.half}, and train.precision is {precision}: "
                "give the peak in that with --peak-tflops"
            )
        return self._machine(
            self.device.lower() if self.device else "a device",
            peak=(self.peak_tflops or known.peak_tflops) * 1e12,
            share=self.mfu or DEFAULT_MFU,
            watts=self.watts or known.watts,
            memory=known.gigabytes and known.gigabytes * 1e9,
            half=precision != "fp32",
            number=known.half if precision == "auto" else precision,
        )

    def measured_machine(self, cores: int, **measured: Any) -> Machine:
        """Return this machine, by what was measured on it."""
        return self._machine("this machine", watts=self.watts or cores * WATTS_A_CORE, measured=True, **measured)

    def _machine(self, name: str, **known: Any) -> Machine:
        grams = DEFAULT_GRAMS_A_KWH if self.co2 is None else self.co2
        return Machine(name, devices=self.devices, pue=self.pue or DEFAULT_PUE, grams_a_kwh=grams, **known)
