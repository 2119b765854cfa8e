"""`forebay demo`: the gateway at work on one machine, without a GPU."""

from loadgen.demo.run import DemoOptions, run_demo
from loadgen.live.processes import LiveError

__all__ = ["DemoOptions", "LiveError", "run_demo"]
