"""`cn.Partitioned`: variables dealt over the devices, each with its optimizer state (ZeRO)."""

from dataclasses import dataclass

from colonnade.errors import Problem, check


@dataclass(frozen=True)
class Partitioned:
    """Every parameter lives with its optimizer state on one device; for `variables=`.

    Args:
        by: `size` gives the largest first, always to the device that has least; `turn` goes round the
            devices in the order in which the function uses the parameters.

    Example:
        >>> import colonnade as cn
        >>> variables = cn.Partitioned(by="turn")
    """

    by: str = "size"

    def __post_init__(self) -> None:
        if self.by not in ("size", "turn"):
            problem = Problem("by", self.by, "must be size or turn", "Leave it out for size")
            check("Partitioned()", [problem])
