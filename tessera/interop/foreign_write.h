// SPDX-License-Identifier: Apache-2.0
// Writes trainings in formats that other programs read.
#pragma once

#include <cstdint>
#include <filesystem>

#include "tessera/interop/export.h"
#include "tessera/interop/foreign.h"

namespace tessera::interop {

/// Writes DeepSpeed's universal checkpoint to the empty `folder`: `latest_universal` and one folder
/// for the step, which DeepSpeed's load_checkpoint reads with checkpoint.load_universal. The
/// loading program keeps its own loss scale and its own hyperparameters, except for the next
/// learning rate. Throws Error{Config} without moments; Error{Unsupported} with the names of
/// parameters without them, because DeepSpeed would not read their weights; Error{Io}.
void write_universal(const std::filesystem::path& folder,
                     const Foreign& training,
                     const checkpoint::Written& written);
/// The total number of bytes reported to `written`.
std::uint64_t universal_bytes(const Foreign& training);

/// Sorts the weights into torch's order of the module's parameters, followed by buffers, and names
/// the parameters: as listed in `training.parameters`, or by the names of a family (module_orders).
/// Throws Error{Unsupported} if neither gives the order.
void order_by_module(Foreign& training);
/// Writes model_N.pth to `model` and optimizer_N.pth to `optimizer`: state_dicts of the module and
/// of torch.optim, with one group. Parameters are numbered in the order of the weights: all of
/// them, or those listed in `training.parameters`. A parameter without state stays without, as a
/// frozen one. Hyperparameters come from config.optimizer.params. Throws Error{Unsupported} for an
/// optimizer other than Adam, AdamW, SGD and Adagrad, for a parameter with only a part of its
/// state, and for SGD with momentum but without its state.
void write_torch_loop(const std::filesystem::path& model,
                      const std::filesystem::path& optimizer,
                      const Foreign& training,
                      const checkpoint::Written& written);
/// A warning about settings of the configuration that one group cannot express: weight decays and
/// learning rates of single parameters. Empty if there are none. Throws the errors of
/// write_torch_loop().
std::string lost_in_torch_loop(const Foreign& training);
/// The total number of bytes reported to `written`.
std::uint64_t torch_loop_bytes(const Foreign& training);

}  // namespace tessera::interop
