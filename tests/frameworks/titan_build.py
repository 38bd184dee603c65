"""torchtitan builds a planned trainer on one of many ranks that do not exist, in a process of its own.

``titan_build.py FOLDER ASSETS`` under ``NGPU`` and ``RANK``: torchtitan's fake backend stands for the other
ranks, and the CPU for the GPU that it takes for granted. Prints what was built as JSON in its last line.
"""

import json
import sys
import types


def stand_in() -> None:
    """Let torchtitan take the CPU for its device."""
    import torch
    import torchtitan.tools.utils as utils

    module = types.ModuleType("cpu_module")
    module.__dict__.update(torch.cpu.__dict__)
    properties = types.SimpleNamespace(total_memory=80 << 30, name="NVIDIA H100")
    module.set_device = module.reset_peak_memory_stats = module.empty_cache = lambda *_: None
    module.get_device_properties = lambda *_: properties
    module.get_device_name = lambda *_: properties.name
    module.memory_stats = lambda *_: {}
    module.current_device = lambda *_: "cpu"
    utils.device_type, utils.device_module = "cpu", module


def main() -> None:
    folder, assets = sys.argv[1:]
    sys.path.insert(0, folder)
    stand_in()
    from torch.distributed.tensor import DTensor
    from torchtitan.config import ConfigManager

    words = ["--module", "meshwright_config", "--config", "planned", "--comm.mode", "fake_backend"]
    words += ["--hf_assets_path", assets, "--dataloader.dataset", "c4_test"]
    words += ["--dataloader.dataset_path", f"{assets}/data"]
    trainer = ConfigManager().parse_args(words).build()
    parts = trainer.model_parts
    layers = [(int(i), layer) for part in parts for i, layer in part.layers.items()]
    parameters = [parameter for part in parts for parameter in part.parameters()]
    mesh = parameters[0].device_mesh
    found = {
        "layers": [[int(i) for i in part.layers] for part in parts],
        "checkpointed": [i for i, layer in layers if "Checkpoint" in type(layer).__name__],
        "sharded": all(isinstance(parameter, DTensor) for parameter in parameters),
        "sizes": dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True)),
        "ends": [bool(parts[0].tok_embeddings), bool(parts[-1].lm_head)],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
