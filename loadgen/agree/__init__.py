"""Do live and simulated runs agree? The same schedule through both, and every figure side by side (loadgen.md 10)."""
