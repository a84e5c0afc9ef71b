"""The card, as NVIDIA's management library (NVML) sees it: what it is, and how it fares while something is measured."""

import contextlib
import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pynvml

_EVERY_S = 0.5


class Card:
    """The card that torch calls `cuda:0`.

    Args:
        uuid: as torch gives it, without a prefix; None for NVML's first card.

    Raises:
        pynvml.NVMLError: there is no such card, or no driver.
    """

    def __init__(self, uuid: str | None) -> None:
        pynvml.nvmlInit()
        if uuid is None:
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        else:
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")

    def facts(self) -> dict[str, Any]:
        """What does not change. What the card does not tell is null."""
        handle = self._handle
        return {
            "name": _text(_ask(pynvml.nvmlDeviceGetName, handle)),
            "driver": _text(_ask(pynvml.nvmlSystemGetDriverVersion)),
            "memory_bytes": _ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            "max_sm_clock_mhz": _ask(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
            "max_memory_clock_mhz": _ask(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM),
            "power_limit_w": _ask(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3),
            "ecc": _ask(lambda: bool(pynvml.nvmlDeviceGetEccMode(handle)[0])),
        }

    def reading(self) -> dict[str, float | None]:
        """What it does now."""
        handle = self._handle
        return {
            "sm_clock_mhz": _ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
            "memory_clock_mhz": _ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
            "power_w": _ask(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3),
            "temperature_c": _ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
            "utilization_percent": _ask(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            "memory_used_bytes": _ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used),
            "throttle_reasons": _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
        }


def open_card(uuid: str | None) -> Card | None:
    """The card; None where NVML does not know it, which is no reason not to measure."""
    with contextlib.suppress(pynvml.NVMLError):
        return Card(uuid)
    return None


@contextmanager
def watched(card: Card | None) -> Iterator[dict[str, Any]]:
    """Read the card twice a second meanwhile. What is yielded is filled in the end: see `summary`."""
    found: dict[str, Any] = {}
    if card is None:
        yield found
        return
    readings = [card.reading()]
    over = threading.Event()

    def read() -> None:
        while not over.wait(_EVERY_S):
            readings.append(card.reading())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
        found |= summary(readings)


def summary(readings: list[dict[str, float | None]]) -> dict[str, Any]:
    """`{low, median, high}` of each quantity; of the throttle reasons all that were ever given, as NVML's bits."""
    result: dict[str, Any] = {}
    for name in readings[0]:
        values = [value for reading in readings if (value := reading[name]) is not None]
        if not values:
            result[name] = None
        elif name == "throttle_reasons":
            bits = 0
            for value in values:
                bits |= int(value)
            result[name] = hex(bits)
        else:
            result[name] = {"low": min(values), "median": statistics.median(values), "high": max(values)}
    return result


def _ask(question: Callable[..., Any], *arguments: object) -> Any:
    try:
        return question(*arguments)
    except pynvml.NVMLError:
        return None


def _text(name: str | bytes | None) -> str | None:
    return name.decode() if isinstance(name, bytes) else name
