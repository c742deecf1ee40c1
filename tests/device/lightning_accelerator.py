"""Simulated device for Lightning's trainer, so that whole trials are trained on it."""

from __future__ import annotations

from typing import Any, final

import torch
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.strategies import SingleDeviceStrategy

from paribus.testing.simulated_device import NAME


@final
class SimulatedAccelerator(Accelerator):
    """Lightning's view of the device: `Trainer(**trainer_options())`."""

    def setup_device(self, device: torch.device) -> None:
        """Nothing to set up."""

    def teardown(self) -> None:
        """Nothing to release."""

    @staticmethod
    def parse_devices(devices: Any) -> int:
        return int(devices)

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [torch.device(NAME, index) for index in range(int(devices))]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return bool(torch.get_device_module(NAME).is_available())

    @staticmethod
    def name() -> str:
        return NAME

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {}


def trainer_options() -> dict[str, Any]:
    """Return the options with which a Lightning trainer uses the simulated device."""
    return {"strategy": SingleDeviceStrategy(torch.device(NAME, 0), accelerator=SimulatedAccelerator())}
