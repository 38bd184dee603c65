"""Megatron-LM's own argument parser, in a process of its own: reads words, prints what it understood.

megatron-core 0.19.2 ships Megatron-LM's parser, but asks for Python 3.12 and for GPUs. Neither matters for
reading arguments: ``typing.override`` and the devices' properties are stood in for, and so is Transformer
Engine, on whose presence the configuration insists. Usage: ``megatron_lm.py FOLDER`` with
``{name: {"world": ranks, "words": [...]}}`` as JSON on standard input; the answer is the last line.
"""

import contextlib
import io
import json
import os
import sys
import types
import typing


def stand_in() -> None:
    """Make torch tell of a Hopper GPU, and typing know ``override``."""
    import torch
    from typing_extensions import override

    typing.override = override
    device = types.SimpleNamespace(major=9, minor=0, name="H100", total_memory=80 << 30)
    torch.cuda.get_device_properties = lambda *_: device
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.current_device = lambda: 0


def plain(value: object) -> object:
    return value if isinstance(value, int | float | str | list | tuple | None) else str(value)


def understood(words: list[str], world: int) -> dict[str, object]:
    """Return the parser's values and the configuration that is built from them, or the refusal."""
    from megatron.training.argument_utils import core_transformer_config_from_args
    from megatron.training.arguments import parse_args, validate_args

    os.environ["WORLD_SIZE"] = str(world)
    sys.argv[1:] = words
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            args = parse_args()
            validate_args(args, {})
            config = core_transformer_config_from_args(args)
    except (Exception, SystemExit) as error:
        return {"refused": f"{type(error).__name__}: {error} {told.getvalue()[-300:]}"}
    found = {"args": vars(args), "config": vars(config)}
    return {k: {n: plain(x) for n, x in v.items()} for k, v in found.items()}


def options() -> list[str]:
    """Return every option that the parser has."""
    import argparse

    from megatron.training.arguments import add_megatron_arguments

    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    return sorted(option for action in parser._actions for option in action.option_strings)


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    os.environ.update(RANK="0", CUDA_DEVICE_MAX_CONNECTIONS="1")
    stand_in()
    from megatron.core.models.common.embeddings import rope_utils

    rope_utils.fused_apply_rotary_pos_emb = rope_utils.fused_apply_rotary_pos_emb or (lambda *_: None)
    cases = json.load(sys.stdin)
    found = {name: understood(case["words"], case["world"]) for name, case in cases.items()}
    print(json.dumps({"options": options(), "cases": found}))


if __name__ == "__main__":
    main()
