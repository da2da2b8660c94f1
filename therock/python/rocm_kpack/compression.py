"""How archives store kernels."""


class NoOpCompressor:
    """Stores kernels as they are."""

    SCHEME_NAME = "none"

    def arguments(self) -> list[str]:
        """The arguments of `kpack create`."""
        return ["--compression", "none"]


class ZstdCompressor:
    """Stores each kernel as a Zstandard frame."""

    SCHEME_NAME = "zstd-per-kernel"

    def __init__(self, compression_level: int = 3) -> None:
        self.compression_level = compression_level

    def arguments(self) -> list[str]:
        """The arguments of `kpack create`."""
        return ["--compression", "zstd", "--level", str(self.compression_level)]
