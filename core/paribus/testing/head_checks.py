"""Check of the declared cost of the head of an objective."""

from __future__ import annotations

from torch.utils.flop_counter import FlopCounterMode

from paribus.errors import ParibusError, SpecError
from paribus.parts.shape import Load
from paribus.specs import resolved
from paribus.testing.host_models import HOLDS, Case, HostModel, Verdict, example_node
from paribus.testing.objective_setup import BATCH, ObjectiveSetup, build_setup, required_setup
from paribus.testing.recorded_forward import RecordedForward


def head_cost(case: Case, host: HostModel) -> Verdict:
    """`cost` and the numbers of scored positions equal what torch counts in the head."""
    setup = required_setup(case, host)
    narrow = _narrow_embedding_setup(case, setup)
    fault = cost_fault(setup)
    try:
        return fault or (HOLDS if narrow is None else cost_fault(narrow))
    except SpecError:  # its scores need the width of the model
        return fault


def _narrow_embedding_setup(case: Case, setup: ObjectiveSetup) -> ObjectiveSetup | None:
    """Return the setup with an embedding of another width than the model's; None if it accepts no such embedding."""
    embeddings = case.registry.index.entries["embedding"].values()
    for entry in (entry for entry in embeddings if entry.traits.get("any_width")):
        node = {**example_node(entry), "width": setup.model.topology.stage("body").shape.width // 2}
        try:
            narrow = build_setup(
                case, resolved({**setup.spec, "embedding": node}, registry=case.registry), setup.length
            )
            narrow.terms(narrow.batch())
        except (ParibusError, RuntimeError):  # torch, of a head that needs the width of the model
            continue
        return narrow
    return None


def cost_fault(setup: ObjectiveSetup) -> str:
    """Return a message if the cost of the head, or its passes through the last layer, are not those declared."""
    objective = setup.model.objective(setup.name)
    run = RecordedForward(setup.run(setup.batch()).of(setup.name))
    objective(run)
    run.repeat()
    with FlopCounterMode(display=False) as counter:
        objective(run)
    counted = counter.get_total_flops() / BATCH
    positions = objective.head_positions(setup.length)
    declared = objective.cost(Load(setup.length, setup.length, head_positions=positions)).flops
    is_distilled = "teacher" in objective.traits.get("needs", [])  # the teacher's part of the loss is not declared
    if declared != counted and not (is_distilled and declared <= counted <= 2 * declared):
        return (
            f"`cost` declares {declared:,} FLOPs for an example of {setup.length} tokens with {positions:,} "
            f"`head_positions`, but torch counts {counted:,.6g}"
        )
    if run.reruns != objective.last_layer_reruns:
        return f"`last_layer_reruns` is {objective.last_layer_reruns}, but {run.reruns} passes are made"
    scored = sum(value.numel() / value.shape[-1] / BATCH for name, value in run.results if name == "unembed")
    unembedded = objective.unembed_positions(setup.length)
    expected = positions if unembedded is None else unembedded
    if scored and scored != expected:
        name = "head_positions" if unembedded is None else "unembed_positions"
        return f"`{name}` is {expected:,} for {setup.length} tokens, but {scored:,.6g} positions are scored"
    return HOLDS
