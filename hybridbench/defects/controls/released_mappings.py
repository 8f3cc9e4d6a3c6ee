"""The healthy twin of ``unreleased-mappings``: as many transfers, with a limited queue."""

from __future__ import annotations

from hybridbench.defects.paced import gives_back
from hybridbench.defects.vllm24264_unreleased_mappings import TransferBuffers

DEFECT = gives_back(
    "released-mappings",
    "vllm#24264",
    "Transfer buffers, 512 KiB each and 4 GiB per hour, are unmapped after 32 others were.",
    TransferBuffers(unreleased_max=32).transfer,
)
