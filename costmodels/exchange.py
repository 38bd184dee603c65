"""What an exchange of tokens costs a device beside its traffic.

- placing: the rows that are permuted, at the stack's share of the streaming rate.
- kernels: a deduplicated exchange runs on the cores of the device. Its kernels cost a fixed time (layout
  of the counts, a barrier of all ranks) and one for each token that they look at, whatever its width.
  DeepEP's, dispatch and combine in the mean, in microseconds and nanoseconds a token: 43 and 21 on H100 and
  H200, 50 and 31 on B200 and B300, 38 and 34 on GB200 and GB300 (fits to 72 points each of 1,024 to 65,536
  tokens, 2,048 to 7,168 features and 1 to 22 experts, 5 to 13 % off; aiconfigurator's measurements, SGLang
  0.5.12).
- waiting: the host learns the rows of each expert from the device (``tokens_per_expert.tolist()`` before the
  first product, Megatron-Core experts.py), so it cannot run ahead: behind each dispatch of a forward pass
  both stand at the same kernel. With ``h`` and ``d`` for the host's and the device's times of the experts'
  kernels, ``H`` and ``D`` for those of all that follows up to the next dispatch, two machines in a row need
  ``max(d + D, h + D, h + H)``: the first two are a stall of ``max(0, h - d)`` before the device's own work,
  the last is the host's whole time (:mod:`meshwright.costmodels.tables`).

Left out: kernels of an exchange that take cores from compute beside it, and stalls inside the two parts.
"""

from collections.abc import Mapping

import numpy as np

from meshwright.costmodels.arrays import FloatArray, Num
from meshwright.costmodels.moe import Exchange, own_tokens
from meshwright.costmodels.operators import LayerKind
from meshwright.costmodels.profile import Profile
from meshwright.costmodels.work import Shape


def exchange_s(op: Exchange, placing_s: Num, shape: Shape, profile: Profile, *, backward: bool) -> Num:
    """Return what an exchange costs its device beside the traffic and the stall.

    Parameters
    ----------
    placing_s
        Time to permute the rows at the full streaming rate.
    backward
        The host knows the counts of a backward pass.
    """
    waits = op.direction == "dispatch" and not backward
    kernels = profile.exchange_fixed_s + profile.exchange_token_s * own_tokens(shape)
    own = op.deduplicated * (np.asarray(shape.ep) > 1) * kernels
    return placing_s / profile.permute_fraction + own + waits * profile.dispatch_sync_s


def stalled_s(
    kind: LayerKind, seconds: Mapping[str, Num], launches: Mapping[str, Num], profile: Profile
) -> dict[str, FloatArray]:
    """Return what a forward pass waits behind its dispatch for the host to issue the experts' kernels.

    Parameters
    ----------
    seconds, launches
        Of each operator, by its name; launches that the host issues itself.
    """
    experts = [op.name for op in kind.operators if op.expert]
    issued = profile.forward_host_s * sum((launches[name] for name in experts), start=np.float64(0.0))
    busy = sum((seconds[name] for name in experts), start=np.float64(0.0))
    late = np.maximum(0.0, np.asarray(issued - busy)) * (np.asarray(profile.dispatch_sync_s) > 0)
    ways = (op.name for op in kind.operators if isinstance(op, Exchange) and op.direction == "dispatch")
    return {name: np.asarray(late) for name in list(ways)[:1]}
