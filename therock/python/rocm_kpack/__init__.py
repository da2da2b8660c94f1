"""The tools of ROCm's build, by the command kpack."""
