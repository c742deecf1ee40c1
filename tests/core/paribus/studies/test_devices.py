"""Trials that run at once are dealt out over the devices, one each."""

from __future__ import annotations

import os

import pytest
import torch

from paribus.studies.devices import VISIBLE, dealt, pin


def test_every_device_gets_its_share() -> None:
    devices = ["0", "1", "GPU-abc"]
    assert [dealt(place, devices) for place in range(6)] == [*devices, *devices]


@pytest.mark.parametrize("devices", [[], ["0"]])
def test_with_no_choice_nothing_is_chosen(devices: list[str]) -> None:
    assert dealt(1, devices) is None


def test_a_trial_sees_its_own_device_of_those_that_its_process_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "4,7")

    pin(3, {})
    assert os.environ[VISIBLE] == "7"


def test_devices_are_counted_where_none_are_named(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    pin(4, {"devices": "auto"})
    assert os.environ.pop(VISIBLE) == "1"


def test_a_trial_over_several_devices_sees_them_all(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setenv(VISIBLE, "0,1")
    pin(1, {"devices": 2})
    assert os.environ[VISIBLE] == "0,1"
