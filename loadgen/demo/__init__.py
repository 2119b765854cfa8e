"""`forebay demo`: the gateway at work on one machine, without a GPU."""

from loadgen.demo.processes import DemoError
from loadgen.demo.run import DemoOptions, run_demo

__all__ = ["DemoError", "DemoOptions", "run_demo"]
