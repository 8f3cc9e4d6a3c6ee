"""``hybridbench list models``: presets, the memory each needs, and how much fits here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from hybridbench.cli.stored import ListFormat
from hybridbench.foundation.safe_output import emit
from hybridbench.foundation.units import format_bytes, format_count
from hybridbench.records.codec import by_name
from hybridbench.records.json_value import json_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hybridbench.engine.models.sizes import ModelSizes


def list_models(
    format_: Annotated[
        ListFormat, typer.Option("--format", help="Output format.")
    ] = ListFormat.CONSOLE,
) -> None:
    """List the presets: parameters, bytes of a state slot and of a KV token, and what fits here.

    Example: hybridbench list models --format json
    """
    # Imported here: the presets import torch, and `--help` should not wait for it.
    from hybridbench.engine.models.presets import PRESETS
    from hybridbench.engine.models.sizes import ModelSizes
    from hybridbench.sampling.headroom import memory_headroom

    room = memory_headroom()
    free_bytes = None if room is None else room.left_bytes
    models = [_listed(name, ModelSizes.of(PRESETS[name]), free_bytes) for name in PRESETS]
    if format_ is ListFormat.JSON:
        emit(json_text([by_name(model) for model in models]))
        return
    from hybridbench.foundation.terminal import Terminal

    Terminal().print(_table(models, free_bytes))


class _Listed(msgspec.Struct, frozen=True):
    """JSON row of a preset in float32; None where the free memory is unknown."""

    name: str
    parameters: int
    weight_bytes: int
    state_bytes_per_slot: int
    kv_bytes_per_token: int
    mamba_slots_that_fit: int | None
    kv_tokens_that_fit: int | None


def _listed(name: str, sizes: ModelSizes, free_bytes: int | None) -> _Listed:
    def fit(size_bytes: int) -> int | None:
        if free_bytes is None or not size_bytes:
            return None
        return sizes.room_beside_weights(free_bytes) // size_bytes

    return _Listed(
        name=name,
        parameters=sizes.parameters,
        weight_bytes=sizes.weight_bytes,
        state_bytes_per_slot=sizes.state_bytes_per_slot,
        kv_bytes_per_token=sizes.kv_bytes_per_token,
        mamba_slots_that_fit=fit(sizes.state_bytes_per_slot),
        kv_tokens_that_fit=fit(sizes.kv_bytes_per_token),
    )


def _table(models: list[_Listed], free_bytes: int | None) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    titles = ("model", "parameters", "state/slot", "KV/token", "slots fit", "or tokens fit")
    grid.add_row(*(Text(title, style="bold") for title in titles))
    for column in grid.columns[1:]:
        column.justify = "right"
    for model in models:
        grid.add_row(
            Text(model.name),
            Text(format_count(model.parameters)),
            Text(format_bytes(model.state_bytes_per_slot) if model.state_bytes_per_slot else "-"),
            Text(format_bytes(model.kv_bytes_per_token)),
            *(
                Text("-" if count is None else f"{count:,}")
                for count in (model.mamba_slots_that_fit, model.kv_tokens_that_fit)
            ),
        )
    free = "an unknown amount of" if free_bytes is None else format_bytes(free_bytes)
    note = f"\nfloat32; beside the weights, in the usable part of {free} free memory"
    return Group(grid, Text(note, style="dim"))
