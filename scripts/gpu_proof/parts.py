"""What there is to measure. A new part is one file and one line here."""

from dataclasses import dataclass

_HERE = "scripts.gpu_proof"


@dataclass(frozen=True, slots=True)
class Part:
    """One part, which runs in a process of its own.

    Attributes:
        title: for people.
        module: its `measure(sizes, notes)` is called.
        limit_s: longest that it may take. All together stay within eight minutes.
    """

    title: str
    module: str
    limit_s: float


KERNELS, CEILINGS, DECODE, PREFILL, HOST, OFFLINE, TUNE = range(1, 8)
PARTS: dict[int, Part] = {
    KERNELS: Part("kernels against float32", f"{_HERE}.kernels", 120),
    CEILINGS: Part("ceilings of the card", f"{_HERE}.ceilings", 20),
    DECODE: Part("decode", f"{_HERE}.decode", 50),
    PREFILL: Part("prefill", f"{_HERE}.prefill", 35),
    HOST: Part("host time and idle device", f"{_HERE}.host", 70),
    OFFLINE: Part("offline throughput", f"{_HERE}.offline", 65),
    TUNE: Part("tune", f"{_HERE}.study", 120),
}
