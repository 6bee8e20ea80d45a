# SPDX-License-Identifier: Apache-2.0
"""The arguments that launchers of DeepSpeed give to a script."""

from __future__ import annotations

import argparse


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --deepspeed, --deepspeed_config and --local_rank to the parser of a script, as deepspeed.add_config_arguments()
    and its users do; give the configuration to initialize(): tessera.initialize(model, args.deepspeed_config)."""
    group = parser.add_argument_group("tessera", "as for DeepSpeed")
    group.add_argument("--deepspeed", default=False, action="store_true", help="train by the file of --deepspeed_config")
    group.add_argument("--deepspeed_config", default=None, type=str, help="a configuration of tessera or DeepSpeed")
    known = {option for action in parser._actions for option in action.option_strings}
    if "--local_rank" not in known:
        group.add_argument("--local_rank", default=-1, type=int, help="given by a launcher; the environment says the rank")
    return parser
