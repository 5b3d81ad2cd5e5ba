"""What came of a simulated step: its length, what it is made of, bytes, memory, and the timeline."""

from dataclasses import dataclass, field

from colonnade.describe.fields import LARGEST
from colonnade.describe.plan import Plan, Prediction
from colonnade.describe.timeline import Timeline


@dataclass(frozen=True)
class Simulation:
    """What came of it; seconds are of one step, on average where something is drawn."""

    step: float
    timeline: Timeline  # of one step
    compute: float
    waiting: float
    reduction: float
    update: float
    overhead: float
    moved: int  # bytes
    busiest: int  # bytes over the busiest link
    memory: int  # bytes on the fullest device
    memory_known: bool = True  # whether activations are in it
    staleness: dict[int, int] = field(default_factory=dict)  # gradients of each age

    def prediction(self, plan: Plan, alone: float) -> Prediction:
        """As a plan keeps it; `alone` are the seconds of the same batch on one device."""
        return Prediction(
            step=self.step,
            examples_per_second=min(plan.batch / self.step, LARGEST) if self.step else 0.0,
            efficiency=alone / (plan.num_devices * self.step) if self.step else 0.0,
            memory=self.memory,
            moved=self.moved,
            busiest=self.busiest,
            compute=self.compute,
            waiting=self.waiting,
            reduction=self.reduction,
            update=self.update,
            overhead=self.overhead,
            memory_known=self.memory_known,
        )
