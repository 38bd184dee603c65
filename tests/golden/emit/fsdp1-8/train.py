"""Trains the model of plan.json with Accelerate: ./launch.sh --model FOLDER [--tokens FILE.npy]."""

import json
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from planned import PLAN, arguments, batches, build


def optimizer_of(model, given):
    """Return the plan's optimizer with the values of training_args.json."""
    rates = {"lr": given["learning_rate"], "weight_decay": given["weight_decay"]}
    if PLAN["optimizer"] == "sgd":
        return torch.optim.SGD(model.parameters(), **rates)
    betas = (given["adam_beta1"], given["adam_beta2"])
    fused = torch.cuda.is_available()
    return torch.optim.AdamW(model.parameters(), betas=betas, eps=given["adam_epsilon"], fused=fused, **rates)


def forward_backward(accelerator, model, ids):
    """Run a micro-batch and return its loss; context ranks deal its tokens out, each adds to the mean."""
    ids = ids.to(accelerator.device)
    if PLAN["cp"] == 1:
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        return loss.detach()
    places = torch.arange(ids.shape[1], device=ids.device).repeat(len(ids), 1)
    following = torch.nn.functional.pad(ids, (0, 1), value=-100)[:, 1:].contiguous()
    own, share = [ids, places, following], len(ids) * (ids.shape[1] - 1) / PLAN["cp"]
    with accelerator.maybe_context_parallel(own, [1, 1, 1], no_restore_buffers=set(own)):
        labels = {"labels": following, "shift_labels": following, "num_items_in_batch": share}
        loss = model(input_ids=ids, position_ids=places, **labels).loss
        accelerator.backward(loss)
    return loss.detach()


def main() -> None:
    """Train for --steps steps and print each step's loss."""
    args = arguments(__doc__).parse_args()
    given = json.loads(Path(__file__).with_name("training_args.json").read_text())
    torch.backends.cuda.matmul.allow_tf32 = PLAN["precision"] == "tf32"
    passes = given["gradient_accumulation_steps"]
    each = given["accelerator_config"]["gradient_accumulation_kwargs"]
    gather = GradientAccumulationPlugin(num_steps=passes, **each)
    accelerator = Accelerator(gradient_accumulation_plugin=gather)
    whole = accelerator.state.fsdp_plugin.activation_checkpointing  # of every layer: Accelerate does it
    model = build(args, recompute=not whole)
    vocabulary = model.config.vocab_size
    model, optimizer = accelerator.prepare(model, optimizer_of(model, given))
    data = batches(args, vocabulary, accelerator.process_index // PLAN["cp"])
    for step in range(args.steps):
        total = torch.zeros((), device=accelerator.device)
        for _ in range(passes):
            with accelerator.accumulate(model):
                total += forward_backward(accelerator, model, next(data)) / passes
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), given["max_grad_norm"])
                optimizer.step()
                optimizer.zero_grad()
        total = accelerator.reduce(total, "mean").item()
        if accelerator.is_main_process:
            print(f"step {step + 1} loss {total:.6f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
